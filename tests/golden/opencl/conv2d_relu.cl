__kernel void conv2d_relu(__global float* restrict B_ptr, __write_only image2d_array_t compute_ptr, __read_only image2d_array_t x0_ptr) {
  const sampler_t image_sampler = CLK_NORMALIZED_COORDS_FALSE | CLK_ADDRESS_CLAMP | CLK_FILTER_NEAREST;
  float acc_ptr[4];
  float value_ptr[180];
  if (((get_group_id(0) * 64) + (get_local_id(0) >> 1)) < 117) {
    acc_ptr[0] = 0.000000e+00f;
    ... 4 times in all, to
    acc_ptr[3] = 0.000000e+00f;
    int cse_v1 = ((get_group_id(0) * 128) + get_local_id(0));
    int cse_v2 = (((get_group_id(0) * 128) + get_local_id(0)) % 117);
    int cse_v3 = (((get_group_id(0) * 128) + get_local_id(0)) % 13);
    int cse_v4 = (((get_group_id(0) * 128) + get_local_id(0)) / 117);
    int cse_v6 = ((((get_group_id(0) * 128) + get_local_id(0)) % 117) / 13);
    for (int r0 = 0; r0 < 2; ++r0) {
      int cse_v5 = ((((get_group_id(0) * 128) + get_local_id(0)) % 13) - 1);
      int cse_v8 = (((((get_group_id(0) * 128) + get_local_id(0)) % 117) / 13) - 1);
      float4 condval;
      if (((bool)(13 <= (((get_group_id(0) * 128) + get_local_id(0)) % 117))) && ((bool)(1 <= (((get_group_id(0) * 128) + get_local_id(0)) % 13)))) {
        float4 v_ = as_float4(READ_IMAGEF(x0_ptr, image_sampler, ((int4)(((((get_group_id(0) * 128) + get_local_id(0)) % 13) - 1), (((((get_group_id(0) * 128) + get_local_id(0)) % 117) / 13) - 1), r0, 0))));
        condval = v_;
      } else {
        condval = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
      }
      vstore4(condval, 0, value_ptr + 0);
      int cse_v9 = (((((get_group_id(0) * 128) + get_local_id(0)) / 117) * 288) + (r0 * 36));
      value_ptr[4] = B_ptr[(((((get_group_id(0) * 128) + get_local_id(0)) / 117) * 288) + (r0 * 36))];
      value_ptr[5] = B_ptr[((((((get_group_id(0) * 128) + get_local_id(0)) / 117) * 288) + (r0 * 36)) + 72)];
      value_ptr[6] = B_ptr[((((((get_group_id(0) * 128) + get_local_id(0)) / 117) * 288) + (r0 * 36)) + 144)];
      value_ptr[7] = B_ptr[((((((get_group_id(0) * 128) + get_local_id(0)) / 117) * 288) + (r0 * 36)) + 216)];
      acc_ptr[0] = (acc_ptr[0] + (value_ptr[0] * value_ptr[4]));
      ... 4 times in all, to
      acc_ptr[3] = (acc_ptr[3] + (value_ptr[0] * value_ptr[7]));
      value_ptr[8] = B_ptr[((((((get_group_id(0) * 128) + get_local_id(0)) / 117) * 288) + (r0 * 36)) + 9)];
      ... 4 times in all, to
      value_ptr[11] = B_ptr[((((((get_group_id(0) * 128) + get_local_id(0)) / 117) * 288) + (r0 * 36)) + 225)];
      acc_ptr[0] = (acc_ptr[0] + (value_ptr[1] * value_ptr[8]));
      ... 4 times in all, to
      acc_ptr[3] = (acc_ptr[3] + (value_ptr[1] * value_ptr[11]));
      value_ptr[12] = B_ptr[((((((get_group_id(0) * 128) + get_local_id(0)) / 117) * 288) + (r0 * 36)) + 18)];
      ... 4 times in all, to
      value_ptr[15] = B_ptr[((((((get_group_id(0) * 128) + get_local_id(0)) / 117) * 288) + (r0 * 36)) + 234)];
      acc_ptr[0] = (acc_ptr[0] + (value_ptr[2] * value_ptr[12]));
      ... 4 times in all, to
      acc_ptr[3] = (acc_ptr[3] + (value_ptr[2] * value_ptr[15]));
      value_ptr[16] = B_ptr[((((((get_group_id(0) * 128) + get_local_id(0)) / 117) * 288) + (r0 * 36)) + 27)];
      ... 4 times in all, to
      value_ptr[19] = B_ptr[((((((get_group_id(0) * 128) + get_local_id(0)) / 117) * 288) + (r0 * 36)) + 243)];
      acc_ptr[0] = (acc_ptr[0] + (value_ptr[3] * value_ptr[16]));
      ... 4 times in all, to
      acc_ptr[3] = (acc_ptr[3] + (value_ptr[3] * value_ptr[19]));
      float4 condval_1;
      if (1 <= (((get_group_id(0) * 128) + get_local_id(0)) % 13)) {
        float4 v__1 = as_float4(READ_IMAGEF(x0_ptr, image_sampler, ((int4)(((((get_group_id(0) * 128) + get_local_id(0)) % 13) - 1), ((((get_group_id(0) * 128) + get_local_id(0)) % 117) / 13), r0, 0))));
        condval_1 = v__1;
      } else {
        condval_1 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
      }
      vstore4(condval_1, 0, value_ptr + 20);
      value_ptr[24] = B_ptr[((((((get_group_id(0) * 128) + get_local_id(0)) / 117) * 288) + (r0 * 36)) + 3)];
      ... 4 times in all, to
      value_ptr[27] = B_ptr[((((((get_group_id(0) * 128) + get_local_id(0)) / 117) * 288) + (r0 * 36)) + 219)];
      acc_ptr[0] = (acc_ptr[0] + (value_ptr[20] * value_ptr[24]));
      ... 4 times in all, to
      acc_ptr[3] = (acc_ptr[3] + (value_ptr[20] * value_ptr[27]));
      ... 4 times in all, to
      value_ptr[36] = B_ptr[((((((get_group_id(0) * 128) + get_local_id(0)) / 117) * 288) + (r0 * 36)) + 30)];
      ... 4 times in all, to
      value_ptr[39] = B_ptr[((((((get_group_id(0) * 128) + get_local_id(0)) / 117) * 288) + (r0 * 36)) + 246)];
      acc_ptr[0] = (acc_ptr[0] + (value_ptr[23] * value_ptr[36]));
      ... 4 times in all, to
      acc_ptr[3] = (acc_ptr[3] + (value_ptr[23] * value_ptr[39]));
      int cse_v10 = (((((get_group_id(0) * 128) + get_local_id(0)) % 117) / 13) + 1);
      float4 condval_2;
      if (((bool)((((get_group_id(0) * 128) + get_local_id(0)) % 117) < 104)) && ((bool)(1 <= (((get_group_id(0) * 128) + get_local_id(0)) % 13)))) {
        float4 v__2 = as_float4(READ_IMAGEF(x0_ptr, image_sampler, ((int4)(((((get_group_id(0) * 128) + get_local_id(0)) % 13) - 1), (((((get_group_id(0) * 128) + get_local_id(0)) % 117) / 13) + 1), r0, 0))));
        condval_2 = v__2;
      } else {
        condval_2 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
      }
      vstore4(condval_2, 0, value_ptr + 40);
      value_ptr[44] = B_ptr[((((((get_group_id(0) * 128) + get_local_id(0)) / 117) * 288) + (r0 * 36)) + 6)];
      ... 4 times in all, to
      value_ptr[47] = B_ptr[((((((get_group_id(0) * 128) + get_local_id(0)) / 117) * 288) + (r0 * 36)) + 222)];
      acc_ptr[0] = (acc_ptr[0] + (value_ptr[40] * value_ptr[44]));
      ... 4 times in all, to
      acc_ptr[3] = (acc_ptr[3] + (value_ptr[40] * value_ptr[47]));
      ... 4 times in all, to
      value_ptr[56] = B_ptr[((((((get_group_id(0) * 128) + get_local_id(0)) / 117) * 288) + (r0 * 36)) + 33)];
      ... 4 times in all, to
      value_ptr[59] = B_ptr[((((((get_group_id(0) * 128) + get_local_id(0)) / 117) * 288) + (r0 * 36)) + 249)];
      acc_ptr[0] = (acc_ptr[0] + (value_ptr[43] * value_ptr[56]));
      ... 4 times in all, to
      acc_ptr[3] = (acc_ptr[3] + (value_ptr[43] * value_ptr[59]));
      float4 condval_3;
      if (13 <= (((get_group_id(0) * 128) + get_local_id(0)) % 117)) {
        float4 v__3 = as_float4(READ_IMAGEF(x0_ptr, image_sampler, ((int4)((((get_group_id(0) * 128) + get_local_id(0)) % 13), (((((get_group_id(0) * 128) + get_local_id(0)) % 117) / 13) - 1), r0, 0))));
        condval_3 = v__3;
      } else {
        condval_3 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
      }
      vstore4(condval_3, 0, value_ptr + 60);
      value_ptr[64] = B_ptr[((((((get_group_id(0) * 128) + get_local_id(0)) / 117) * 288) + (r0 * 36)) + 1)];
      ... 4 times in all, to
      value_ptr[67] = B_ptr[((((((get_group_id(0) * 128) + get_local_id(0)) / 117) * 288) + (r0 * 36)) + 217)];
      acc_ptr[0] = (acc_ptr[0] + (value_ptr[60] * value_ptr[64]));
      ... 4 times in all, to
      acc_ptr[3] = (acc_ptr[3] + (value_ptr[60] * value_ptr[67]));
      ... 4 times in all, to
      value_ptr[76] = B_ptr[((((((get_group_id(0) * 128) + get_local_id(0)) / 117) * 288) + (r0 * 36)) + 28)];
      ... 4 times in all, to
      value_ptr[79] = B_ptr[((((((get_group_id(0) * 128) + get_local_id(0)) / 117) * 288) + (r0 * 36)) + 244)];
      acc_ptr[0] = (acc_ptr[0] + (value_ptr[63] * value_ptr[76]));
      ... 4 times in all, to
      acc_ptr[3] = (acc_ptr[3] + (value_ptr[63] * value_ptr[79]));
      float4 v__4 = as_float4(READ_IMAGEF(x0_ptr, image_sampler, ((int4)((((get_group_id(0) * 128) + get_local_id(0)) % 13), ((((get_group_id(0) * 128) + get_local_id(0)) % 117) / 13), r0, 0))));
      vstore4(v__4, 0, value_ptr + 80);
      value_ptr[84] = B_ptr[((((((get_group_id(0) * 128) + get_local_id(0)) / 117) * 288) + (r0 * 36)) + 4)];
      ... 4 times in all, to
      value_ptr[87] = B_ptr[((((((get_group_id(0) * 128) + get_local_id(0)) / 117) * 288) + (r0 * 36)) + 220)];
      acc_ptr[0] = (acc_ptr[0] + (value_ptr[80] * value_ptr[84]));
      ... 4 times in all, to
      acc_ptr[3] = (acc_ptr[3] + (value_ptr[80] * value_ptr[87]));
      ... 4 times in all, to
      value_ptr[96] = B_ptr[((((((get_group_id(0) * 128) + get_local_id(0)) / 117) * 288) + (r0 * 36)) + 31)];
      ... 4 times in all, to
      value_ptr[99] = B_ptr[((((((get_group_id(0) * 128) + get_local_id(0)) / 117) * 288) + (r0 * 36)) + 247)];
      acc_ptr[0] = (acc_ptr[0] + (value_ptr[83] * value_ptr[96]));
      ... 4 times in all, to
      acc_ptr[3] = (acc_ptr[3] + (value_ptr[83] * value_ptr[99]));
      float4 condval_4;
      if ((((get_group_id(0) * 128) + get_local_id(0)) % 117) < 104) {
        float4 v__5 = as_float4(READ_IMAGEF(x0_ptr, image_sampler, ((int4)((((get_group_id(0) * 128) + get_local_id(0)) % 13), (((((get_group_id(0) * 128) + get_local_id(0)) % 117) / 13) + 1), r0, 0))));
        condval_4 = v__5;
      } else {
        condval_4 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
      }
      vstore4(condval_4, 0, value_ptr + 100);
      value_ptr[104] = B_ptr[((((((get_group_id(0) * 128) + get_local_id(0)) / 117) * 288) + (r0 * 36)) + 7)];
      ... 4 times in all, to
      value_ptr[107] = B_ptr[((((((get_group_id(0) * 128) + get_local_id(0)) / 117) * 288) + (r0 * 36)) + 223)];
      acc_ptr[0] = (acc_ptr[0] + (value_ptr[100] * value_ptr[104]));
      ... 4 times in all, to
      acc_ptr[3] = (acc_ptr[3] + (value_ptr[100] * value_ptr[107]));
      ... 4 times in all, to
      value_ptr[116] = B_ptr[((((((get_group_id(0) * 128) + get_local_id(0)) / 117) * 288) + (r0 * 36)) + 34)];
      ... 4 times in all, to
      value_ptr[119] = B_ptr[((((((get_group_id(0) * 128) + get_local_id(0)) / 117) * 288) + (r0 * 36)) + 250)];
      acc_ptr[0] = (acc_ptr[0] + (value_ptr[103] * value_ptr[116]));
      ... 4 times in all, to
      acc_ptr[3] = (acc_ptr[3] + (value_ptr[103] * value_ptr[119]));
      int cse_v7 = ((((get_group_id(0) * 128) + get_local_id(0)) % 13) + 1);
      float4 condval_5;
      if (((bool)(13 <= (((get_group_id(0) * 128) + get_local_id(0)) % 117))) && ((bool)((((get_group_id(0) * 128) + get_local_id(0)) % 13) < 12))) {
        float4 v__6 = as_float4(READ_IMAGEF(x0_ptr, image_sampler, ((int4)(((((get_group_id(0) * 128) + get_local_id(0)) % 13) + 1), (((((get_group_id(0) * 128) + get_local_id(0)) % 117) / 13) - 1), r0, 0))));
        condval_5 = v__6;
      } else {
        condval_5 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
      }
      vstore4(condval_5, 0, value_ptr + 120);
      value_ptr[124] = B_ptr[((((((get_group_id(0) * 128) + get_local_id(0)) / 117) * 288) + (r0 * 36)) + 2)];
      ... 4 times in all, to
      value_ptr[127] = B_ptr[((((((get_group_id(0) * 128) + get_local_id(0)) / 117) * 288) + (r0 * 36)) + 218)];
      acc_ptr[0] = (acc_ptr[0] + (value_ptr[120] * value_ptr[124]));
      ... 4 times in all, to
      acc_ptr[3] = (acc_ptr[3] + (value_ptr[120] * value_ptr[127]));
      ... 4 times in all, to
      value_ptr[136] = B_ptr[((((((get_group_id(0) * 128) + get_local_id(0)) / 117) * 288) + (r0 * 36)) + 29)];
      ... 4 times in all, to
      value_ptr[139] = B_ptr[((((((get_group_id(0) * 128) + get_local_id(0)) / 117) * 288) + (r0 * 36)) + 245)];
      acc_ptr[0] = (acc_ptr[0] + (value_ptr[123] * value_ptr[136]));
      ... 4 times in all, to
      acc_ptr[3] = (acc_ptr[3] + (value_ptr[123] * value_ptr[139]));
      float4 condval_6;
      if ((((get_group_id(0) * 128) + get_local_id(0)) % 13) < 12) {
        float4 v__7 = as_float4(READ_IMAGEF(x0_ptr, image_sampler, ((int4)(((((get_group_id(0) * 128) + get_local_id(0)) % 13) + 1), ((((get_group_id(0) * 128) + get_local_id(0)) % 117) / 13), r0, 0))));
        condval_6 = v__7;
      } else {
        condval_6 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
      }
      vstore4(condval_6, 0, value_ptr + 140);
      value_ptr[144] = B_ptr[((((((get_group_id(0) * 128) + get_local_id(0)) / 117) * 288) + (r0 * 36)) + 5)];
      ... 4 times in all, to
      value_ptr[147] = B_ptr[((((((get_group_id(0) * 128) + get_local_id(0)) / 117) * 288) + (r0 * 36)) + 221)];
      acc_ptr[0] = (acc_ptr[0] + (value_ptr[140] * value_ptr[144]));
      ... 4 times in all, to
      acc_ptr[3] = (acc_ptr[3] + (value_ptr[140] * value_ptr[147]));
      ... 4 times in all, to
      value_ptr[156] = B_ptr[((((((get_group_id(0) * 128) + get_local_id(0)) / 117) * 288) + (r0 * 36)) + 32)];
      ... 4 times in all, to
      value_ptr[159] = B_ptr[((((((get_group_id(0) * 128) + get_local_id(0)) / 117) * 288) + (r0 * 36)) + 248)];
      acc_ptr[0] = (acc_ptr[0] + (value_ptr[143] * value_ptr[156]));
      ... 4 times in all, to
      acc_ptr[3] = (acc_ptr[3] + (value_ptr[143] * value_ptr[159]));
      float4 condval_7;
      if (((bool)((((get_group_id(0) * 128) + get_local_id(0)) % 117) < 104)) && ((bool)((((get_group_id(0) * 128) + get_local_id(0)) % 13) < 12))) {
        float4 v__8 = as_float4(READ_IMAGEF(x0_ptr, image_sampler, ((int4)(((((get_group_id(0) * 128) + get_local_id(0)) % 13) + 1), (((((get_group_id(0) * 128) + get_local_id(0)) % 117) / 13) + 1), r0, 0))));
        condval_7 = v__8;
      } else {
        condval_7 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
      }
      vstore4(condval_7, 0, value_ptr + 160);
      value_ptr[164] = B_ptr[((((((get_group_id(0) * 128) + get_local_id(0)) / 117) * 288) + (r0 * 36)) + 8)];
      ... 4 times in all, to
      value_ptr[167] = B_ptr[((((((get_group_id(0) * 128) + get_local_id(0)) / 117) * 288) + (r0 * 36)) + 224)];
      acc_ptr[0] = (acc_ptr[0] + (value_ptr[160] * value_ptr[164]));
      ... 4 times in all, to
      acc_ptr[3] = (acc_ptr[3] + (value_ptr[160] * value_ptr[167]));
      ... 4 times in all, to
      value_ptr[176] = B_ptr[((((((get_group_id(0) * 128) + get_local_id(0)) / 117) * 288) + (r0 * 36)) + 35)];
      ... 4 times in all, to
      value_ptr[179] = B_ptr[((((((get_group_id(0) * 128) + get_local_id(0)) / 117) * 288) + (r0 * 36)) + 251)];
      acc_ptr[0] = (acc_ptr[0] + (value_ptr[163] * value_ptr[176]));
      ... 4 times in all, to
      acc_ptr[3] = (acc_ptr[3] + (value_ptr[163] * value_ptr[179]));
    }
    float4 v__9 = max(vload4(0, acc_ptr + 0), ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)));
    write_imagef(compute_ptr, (int4)((((get_group_id(0) * 128) + get_local_id(0)) % 13), ((((get_group_id(0) * 128) + get_local_id(0)) % 117) / 13), (((get_group_id(0) * 128) + get_local_id(0)) / 117), 0), as_float4(v__9));
  }
}
