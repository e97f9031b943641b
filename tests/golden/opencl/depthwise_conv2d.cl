__kernel void depthwise_conv2d(__read_only image2d_array_t B_ptr, __write_only image2d_array_t compute_ptr, __read_only image2d_array_t lv_ptr) {
  const sampler_t image_sampler = CLK_NORMALIZED_COORDS_FALSE | CLK_ADDRESS_CLAMP | CLK_FILTER_NEAREST;
  float acc_ptr[4];
  float value_ptr[72];
  if (((get_group_id(0) * 64) + (get_local_id(0) >> 1)) < 117) {
    acc_ptr[0] = 0.000000e+00f;
    ... 4 times in all, to
    acc_ptr[3] = 0.000000e+00f;
    int cse_v1 = ((get_group_id(0) * 128) + get_local_id(0));
    int cse_v2 = (((get_group_id(0) * 128) + get_local_id(0)) % 117);
    int cse_v3 = (((get_group_id(0) * 128) + get_local_id(0)) % 13);
    int cse_v4 = (((get_group_id(0) * 128) + get_local_id(0)) / 117);
    int cse_v5 = ((((get_group_id(0) * 128) + get_local_id(0)) % 13) - 1);
    int cse_v6 = ((((get_group_id(0) * 128) + get_local_id(0)) % 117) / 13);
    int cse_v8 = (((((get_group_id(0) * 128) + get_local_id(0)) % 117) / 13) - 1);
    float4 condval;
    if (((bool)(13 <= (((get_group_id(0) * 128) + get_local_id(0)) % 117))) && ((bool)(1 <= (((get_group_id(0) * 128) + get_local_id(0)) % 13)))) {
      float4 v_ = as_float4(READ_IMAGEF(lv_ptr, image_sampler, ((int4)(((((get_group_id(0) * 128) + get_local_id(0)) % 13) - 1), (((((get_group_id(0) * 128) + get_local_id(0)) % 117) / 13) - 1), (((get_group_id(0) * 128) + get_local_id(0)) / 117), 0))));
      condval = v_;
    } else {
      condval = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
    }
    vstore4(condval, 0, value_ptr + 0);
    float4 v__1 = as_float4(READ_IMAGEF(B_ptr, image_sampler, ((int4)(0, 0, (((get_group_id(0) * 128) + get_local_id(0)) / 117), 0))));
    vstore4(v__1, 0, value_ptr + 4);
    acc_ptr[0] = (acc_ptr[0] + (value_ptr[0] * value_ptr[4]));
    ... 4 times in all, to
    acc_ptr[3] = (acc_ptr[3] + (value_ptr[3] * value_ptr[7]));
    float4 condval_1;
    if (1 <= (((get_group_id(0) * 128) + get_local_id(0)) % 13)) {
      float4 v__2 = as_float4(READ_IMAGEF(lv_ptr, image_sampler, ((int4)(((((get_group_id(0) * 128) + get_local_id(0)) % 13) - 1), ((((get_group_id(0) * 128) + get_local_id(0)) % 117) / 13), (((get_group_id(0) * 128) + get_local_id(0)) / 117), 0))));
      condval_1 = v__2;
    } else {
      condval_1 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
    }
    vstore4(condval_1, 0, value_ptr + 8);
    float4 v__3 = as_float4(READ_IMAGEF(B_ptr, image_sampler, ((int4)(0, 1, (((get_group_id(0) * 128) + get_local_id(0)) / 117), 0))));
    vstore4(v__3, 0, value_ptr + 12);
    acc_ptr[0] = (acc_ptr[0] + (value_ptr[8] * value_ptr[12]));
    ... 4 times in all, to
    acc_ptr[3] = (acc_ptr[3] + (value_ptr[11] * value_ptr[15]));
    int cse_v9 = (((((get_group_id(0) * 128) + get_local_id(0)) % 117) / 13) + 1);
    float4 condval_2;
    if (((bool)((((get_group_id(0) * 128) + get_local_id(0)) % 117) < 104)) && ((bool)(1 <= (((get_group_id(0) * 128) + get_local_id(0)) % 13)))) {
      float4 v__4 = as_float4(READ_IMAGEF(lv_ptr, image_sampler, ((int4)(((((get_group_id(0) * 128) + get_local_id(0)) % 13) - 1), (((((get_group_id(0) * 128) + get_local_id(0)) % 117) / 13) + 1), (((get_group_id(0) * 128) + get_local_id(0)) / 117), 0))));
      condval_2 = v__4;
    } else {
      condval_2 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
    }
    vstore4(condval_2, 0, value_ptr + 16);
    float4 v__5 = as_float4(READ_IMAGEF(B_ptr, image_sampler, ((int4)(0, 2, (((get_group_id(0) * 128) + get_local_id(0)) / 117), 0))));
    vstore4(v__5, 0, value_ptr + 20);
    acc_ptr[0] = (acc_ptr[0] + (value_ptr[16] * value_ptr[20]));
    ... 4 times in all, to
    acc_ptr[3] = (acc_ptr[3] + (value_ptr[19] * value_ptr[23]));
    float4 condval_3;
    if (13 <= (((get_group_id(0) * 128) + get_local_id(0)) % 117)) {
      float4 v__6 = as_float4(READ_IMAGEF(lv_ptr, image_sampler, ((int4)((((get_group_id(0) * 128) + get_local_id(0)) % 13), (((((get_group_id(0) * 128) + get_local_id(0)) % 117) / 13) - 1), (((get_group_id(0) * 128) + get_local_id(0)) / 117), 0))));
      condval_3 = v__6;
    } else {
      condval_3 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
    }
    vstore4(condval_3, 0, value_ptr + 24);
    float4 v__7 = as_float4(READ_IMAGEF(B_ptr, image_sampler, ((int4)(1, 0, (((get_group_id(0) * 128) + get_local_id(0)) / 117), 0))));
    vstore4(v__7, 0, value_ptr + 28);
    acc_ptr[0] = (acc_ptr[0] + (value_ptr[24] * value_ptr[28]));
    ... 4 times in all, to
    acc_ptr[3] = (acc_ptr[3] + (value_ptr[27] * value_ptr[31]));
    float4 v__8 = as_float4(READ_IMAGEF(lv_ptr, image_sampler, ((int4)((((get_group_id(0) * 128) + get_local_id(0)) % 13), ((((get_group_id(0) * 128) + get_local_id(0)) % 117) / 13), (((get_group_id(0) * 128) + get_local_id(0)) / 117), 0))));
    vstore4(v__8, 0, value_ptr + 32);
    float4 v__9 = as_float4(READ_IMAGEF(B_ptr, image_sampler, ((int4)(1, 1, (((get_group_id(0) * 128) + get_local_id(0)) / 117), 0))));
    vstore4(v__9, 0, value_ptr + 36);
    acc_ptr[0] = (acc_ptr[0] + (value_ptr[32] * value_ptr[36]));
    ... 4 times in all, to
    acc_ptr[3] = (acc_ptr[3] + (value_ptr[35] * value_ptr[39]));
    float4 condval_4;
    if ((((get_group_id(0) * 128) + get_local_id(0)) % 117) < 104) {
      float4 v__10 = as_float4(READ_IMAGEF(lv_ptr, image_sampler, ((int4)((((get_group_id(0) * 128) + get_local_id(0)) % 13), (((((get_group_id(0) * 128) + get_local_id(0)) % 117) / 13) + 1), (((get_group_id(0) * 128) + get_local_id(0)) / 117), 0))));
      condval_4 = v__10;
    } else {
      condval_4 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
    }
    vstore4(condval_4, 0, value_ptr + 40);
    float4 v__11 = as_float4(READ_IMAGEF(B_ptr, image_sampler, ((int4)(1, 2, (((get_group_id(0) * 128) + get_local_id(0)) / 117), 0))));
    vstore4(v__11, 0, value_ptr + 44);
    acc_ptr[0] = (acc_ptr[0] + (value_ptr[40] * value_ptr[44]));
    ... 4 times in all, to
    acc_ptr[3] = (acc_ptr[3] + (value_ptr[43] * value_ptr[47]));
    int cse_v7 = ((((get_group_id(0) * 128) + get_local_id(0)) % 13) + 1);
    float4 condval_5;
    if (((bool)(13 <= (((get_group_id(0) * 128) + get_local_id(0)) % 117))) && ((bool)((((get_group_id(0) * 128) + get_local_id(0)) % 13) < 12))) {
      float4 v__12 = as_float4(READ_IMAGEF(lv_ptr, image_sampler, ((int4)(((((get_group_id(0) * 128) + get_local_id(0)) % 13) + 1), (((((get_group_id(0) * 128) + get_local_id(0)) % 117) / 13) - 1), (((get_group_id(0) * 128) + get_local_id(0)) / 117), 0))));
      condval_5 = v__12;
    } else {
      condval_5 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
    }
    vstore4(condval_5, 0, value_ptr + 48);
    float4 v__13 = as_float4(READ_IMAGEF(B_ptr, image_sampler, ((int4)(2, 0, (((get_group_id(0) * 128) + get_local_id(0)) / 117), 0))));
    vstore4(v__13, 0, value_ptr + 52);
    acc_ptr[0] = (acc_ptr[0] + (value_ptr[48] * value_ptr[52]));
    ... 4 times in all, to
    acc_ptr[3] = (acc_ptr[3] + (value_ptr[51] * value_ptr[55]));
    float4 condval_6;
    if ((((get_group_id(0) * 128) + get_local_id(0)) % 13) < 12) {
      float4 v__14 = as_float4(READ_IMAGEF(lv_ptr, image_sampler, ((int4)(((((get_group_id(0) * 128) + get_local_id(0)) % 13) + 1), ((((get_group_id(0) * 128) + get_local_id(0)) % 117) / 13), (((get_group_id(0) * 128) + get_local_id(0)) / 117), 0))));
      condval_6 = v__14;
    } else {
      condval_6 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
    }
    vstore4(condval_6, 0, value_ptr + 56);
    float4 v__15 = as_float4(READ_IMAGEF(B_ptr, image_sampler, ((int4)(2, 1, (((get_group_id(0) * 128) + get_local_id(0)) / 117), 0))));
    vstore4(v__15, 0, value_ptr + 60);
    acc_ptr[0] = (acc_ptr[0] + (value_ptr[56] * value_ptr[60]));
    ... 4 times in all, to
    acc_ptr[3] = (acc_ptr[3] + (value_ptr[59] * value_ptr[63]));
    float4 condval_7;
    if (((bool)((((get_group_id(0) * 128) + get_local_id(0)) % 117) < 104)) && ((bool)((((get_group_id(0) * 128) + get_local_id(0)) % 13) < 12))) {
      float4 v__16 = as_float4(READ_IMAGEF(lv_ptr, image_sampler, ((int4)(((((get_group_id(0) * 128) + get_local_id(0)) % 13) + 1), (((((get_group_id(0) * 128) + get_local_id(0)) % 117) / 13) + 1), (((get_group_id(0) * 128) + get_local_id(0)) / 117), 0))));
      condval_7 = v__16;
    } else {
      condval_7 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
    }
    vstore4(condval_7, 0, value_ptr + 64);
    float4 v__17 = as_float4(READ_IMAGEF(B_ptr, image_sampler, ((int4)(2, 2, (((get_group_id(0) * 128) + get_local_id(0)) / 117), 0))));
    vstore4(v__17, 0, value_ptr + 68);
    acc_ptr[0] = (acc_ptr[0] + (value_ptr[64] * value_ptr[68]));
    ... 4 times in all, to
    acc_ptr[3] = (acc_ptr[3] + (value_ptr[67] * value_ptr[71]));
    float4 v__18 = max(vload4(0, acc_ptr + 0), ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)));
    write_imagef(compute_ptr, (int4)((((get_group_id(0) * 128) + get_local_id(0)) % 13), ((((get_group_id(0) * 128) + get_local_id(0)) % 117) / 13), (((get_group_id(0) * 128) + get_local_id(0)) / 117), 0), as_float4(v__18));
  }
}
