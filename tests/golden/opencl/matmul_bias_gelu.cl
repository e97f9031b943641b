__kernel void matmul_bias_gelu(__read_only image2d_array_t B_ptr, __read_only image2d_array_t B_ptr_1, __write_only image2d_array_t T_multiply_ptr, __read_only image2d_array_t lv_ptr) {
  const sampler_t image_sampler = CLK_NORMALIZED_COORDS_FALSE | CLK_ADDRESS_CLAMP | CLK_FILTER_NEAREST;
  float sums_ptr[16];
  float left_staged_ptr[8];
  float4 right_staged_ptr[2];
  __local float left_shared_ptr[572] __attribute__((aligned(16)));
  __local float4 right_shared_ptr[128];
  float down_ptr[4];
  float across_ptr[4];
  sums_ptr[0] = 0.000000e+00f;
  ... 16 times in all, to
  sums_ptr[15] = 0.000000e+00f;
  int cse_v1 = (get_local_id(0) >> 4);
  int cse_v2 = (get_local_id(0) & 1);
  int cse_v6 = ((get_local_id(0) & 15) >> 2);
  int cse_v7 = ((get_local_id(0) & 3) >> 1);
  int cse_v12 = min((int)(((((get_local_id(0) & 15) >> 2) * 8) + ((get_local_id(0) >> 4) * 2)) + ((get_local_id(0) & 3) >> 1)), (int)21);
  int cse_v13 = (min((int)(((((get_local_id(0) & 15) >> 2) * 8) + ((get_local_id(0) >> 4) * 2)) + ((get_local_id(0) & 3) >> 1)), (int)21) % 11);
  int cse_v14 = (min((int)(((((get_local_id(0) & 15) >> 2) * 8) + ((get_local_id(0) >> 4) * 2)) + ((get_local_id(0) & 3) >> 1)), (int)21) / 11);
  float4 v_ = as_float4(READ_IMAGEF(lv_ptr, image_sampler, ((int4)((min((int)(((((get_local_id(0) & 15) >> 2) * 8) + ((get_local_id(0) >> 4) * 2)) + ((get_local_id(0) & 3) >> 1)), (int)21) % 11), (get_local_id(0) & 1), (min((int)(((((get_local_id(0) & 15) >> 2) * 8) + ((get_local_id(0) >> 4) * 2)) + ((get_local_id(0) & 3) >> 1)), (int)21) / 11), 0))));
  vstore4(v_, 0, left_staged_ptr + 0);
  float4 v__1 = as_float4(READ_IMAGEF(lv_ptr, image_sampler, ((int4)((min((int)(((((get_local_id(0) & 15) >> 2) * 8) + ((get_local_id(0) >> 4) * 2)) + ((get_local_id(0) & 3) >> 1)), (int)21) % 11), ((get_local_id(0) & 1) + 2), (min((int)(((((get_local_id(0) & 15) >> 2) * 8) + ((get_local_id(0) >> 4) * 2)) + ((get_local_id(0) & 3) >> 1)), (int)21) / 11), 0))));
  vstore4(v__1, 0, left_staged_ptr + 4);
  int cse_v3 = (get_local_id(0) >> 3);
  int cse_v4 = (get_local_id(0) & 7);
  int cse_v8 = min((int)(get_local_id(0) & 7), (int)5);
  float4 v__2 = as_float4(READ_IMAGEF(B_ptr, image_sampler, ((int4)((get_local_id(0) >> 3), min((int)(get_local_id(0) & 7), (int)5), 0, 0))));
  right_staged_ptr[0] = v__2;
  int cse_v9 = ((get_local_id(0) >> 3) + 8);
  float4 v__3 = as_float4(READ_IMAGEF(B_ptr, image_sampler, ((int4)(((get_local_id(0) >> 3) + 8), min((int)(get_local_id(0) & 7), (int)5), 0, 0))));
  right_staged_ptr[1] = v__3;
  int cse_v11 = (((((get_local_id(0) & 1) * 144) + ((get_local_id(0) >> 4) * 8)) + (((get_local_id(0) & 3) >> 1) * 4)) + ((get_local_id(0) & 15) >> 2));
  left_shared_ptr[(((((get_local_id(0) & 1) * 144) + ((get_local_id(0) >> 4) * 8)) + (((get_local_id(0) & 3) >> 1) * 4)) + ((get_local_id(0) & 15) >> 2))] = left_staged_ptr[0];
  left_shared_ptr[((((((get_local_id(0) & 1) * 144) + ((get_local_id(0) >> 4) * 8)) + (((get_local_id(0) & 3) >> 1) * 4)) + ((get_local_id(0) & 15) >> 2)) + 36)] = left_staged_ptr[1];
  left_shared_ptr[((((((get_local_id(0) & 1) * 144) + ((get_local_id(0) >> 4) * 8)) + (((get_local_id(0) & 3) >> 1) * 4)) + ((get_local_id(0) & 15) >> 2)) + 72)] = left_staged_ptr[2];
  left_shared_ptr[((((((get_local_id(0) & 1) * 144) + ((get_local_id(0) >> 4) * 8)) + (((get_local_id(0) & 3) >> 1) * 4)) + ((get_local_id(0) & 15) >> 2)) + 108)] = left_staged_ptr[3];
  left_shared_ptr[((((((get_local_id(0) & 1) * 144) + ((get_local_id(0) >> 4) * 8)) + (((get_local_id(0) & 3) >> 1) * 4)) + ((get_local_id(0) & 15) >> 2)) + 288)] = left_staged_ptr[4];
  ... 4 times in all, to
  left_shared_ptr[((((((get_local_id(0) & 1) * 144) + ((get_local_id(0) >> 4) * 8)) + (((get_local_id(0) & 3) >> 1) * 4)) + ((get_local_id(0) & 15) >> 2)) + 396)] = left_staged_ptr[7];
  right_shared_ptr[get_local_id(0)] = right_staged_ptr[0];
  int cse_v5 = (get_local_id(0) + 64);
  right_shared_ptr[(get_local_id(0) + 64)] = right_staged_ptr[1];
  int cse_v10 = ((get_local_id(0) >> 3) * 4);
  barrier(CLK_LOCAL_MEM_FENCE);
  vstore4((*((const __local float4*)(left_shared_ptr + ((get_local_id(0) >> 3) * 4)))), 0, down_ptr + 0);
  vstore4(right_shared_ptr[(get_local_id(0) & 7)], 0, across_ptr + 0);
  sums_ptr[0] = (sums_ptr[0] + (down_ptr[0] * across_ptr[0]));
  ... 4 times in all, to
  sums_ptr[3] = (sums_ptr[3] + (down_ptr[0] * across_ptr[3]));
  ... 4 times in all, to
  sums_ptr[12] = (sums_ptr[12] + (down_ptr[3] * across_ptr[0]));
  ... 4 times in all, to
  sums_ptr[15] = (sums_ptr[15] + (down_ptr[3] * across_ptr[3]));
  vstore4((*((const __local float4*)(left_shared_ptr + (((get_local_id(0) >> 3) * 4) + 36)))), 0, down_ptr + 0);
  vstore4(right_shared_ptr[((get_local_id(0) & 7) + 8)], 0, across_ptr + 0);
  ... 15 times in all, to
  sums_ptr[0] = (sums_ptr[0] + (down_ptr[0] * across_ptr[0]));
  ... 4 times in all, to
  sums_ptr[3] = (sums_ptr[3] + (down_ptr[0] * across_ptr[3]));
  ... 4 times in all, to
  sums_ptr[12] = (sums_ptr[12] + (down_ptr[3] * across_ptr[0]));
  ... 4 times in all, to
  sums_ptr[15] = (sums_ptr[15] + (down_ptr[3] * across_ptr[3]));
  vstore4((*((const __local float4*)(left_shared_ptr + (((get_local_id(0) >> 3) * 4) + 540)))), 0, down_ptr + 0);
  vstore4(right_shared_ptr[((get_local_id(0) & 7) + 120)], 0, across_ptr + 0);
  sums_ptr[0] = (sums_ptr[0] + (down_ptr[0] * across_ptr[0]));
  ... 4 times in all, to
  sums_ptr[3] = (sums_ptr[3] + (down_ptr[0] * across_ptr[3]));
  ... 4 times in all, to
  sums_ptr[12] = (sums_ptr[12] + (down_ptr[3] * across_ptr[0]));
  ... 4 times in all, to
  sums_ptr[15] = (sums_ptr[15] + (down_ptr[3] * across_ptr[3]));
  if ((get_local_id(0) & 7) < 6) {
    float4 v__4 = as_float4(READ_IMAGEF(B_ptr_1, image_sampler, ((int4)((get_local_id(0) & 7), 0, 0, 0))));
    float4 x = ((vload4(0, sums_ptr + 0) + v__4) * ((float4)(as_float(1060439283), as_float(1060439283), as_float(1060439283), as_float(1060439283))));
    float4 x_1 = (x * x);
    float4 v__5 = (vload4(0, sums_ptr + 0) + v__4) * native_recip((native_exp2((x * ((((((((((((x_1 * ((float4)(as_float(-1258930698), as_float(-1258930698), as_float(-1258930698), as_float(-1258930698)))) + ((float4)(1.727104e-05f, 1.727104e-05f, 1.727104e-05f, 1.727104e-05f))) * x_1) + ((float4)(as_float(-1182288120), as_float(-1182288120), as_float(-1182288120), as_float(-1182288120)))) * x_1) + ((float4)(1.805445e-03f, 1.805445e-03f, 1.805445e-03f, 1.805445e-03f))) * x_1) + ((float4)(5.320190e-04f, 5.320190e-04f, 5.320190e-04f, 5.320190e-04f))) * x_1) + ((float4)(-2.965185e-01f, -2.965185e-01f, -2.965185e-01f, -2.965185e-01f))) * x_1) + ((float4)(as_float(-1068474552), as_float(-1068474552), as_float(-1068474552), as_float(-1068474552)))))) + ((float4)(1.000000e+00f, 1.000000e+00f, 1.000000e+00f, 1.000000e+00f))));
    write_imagef(T_multiply_ptr, (int4)((get_local_id(0) >> 3), (get_local_id(0) & 7), 0, 0), as_float4(v__5));
  }
  if ((get_local_id(0) & 7) < 6) {
    float4 v__6 = as_float4(READ_IMAGEF(B_ptr_1, image_sampler, ((int4)((get_local_id(0) & 7), 0, 0, 0))));
    float4 x_2 = ((vload4(0, sums_ptr + 4) + v__6) * ((float4)(as_float(1060439283), as_float(1060439283), as_float(1060439283), as_float(1060439283))));
    float4 x_3 = (x_2 * x_2);
    float4 v__7 = (vload4(0, sums_ptr + 4) + v__6) * native_recip((native_exp2((x_2 * ((((((((((((x_3 * ((float4)(as_float(-1258930698), as_float(-1258930698), as_float(-1258930698), as_float(-1258930698)))) + ((float4)(1.727104e-05f, 1.727104e-05f, 1.727104e-05f, 1.727104e-05f))) * x_3) + ((float4)(as_float(-1182288120), as_float(-1182288120), as_float(-1182288120), as_float(-1182288120)))) * x_3) + ((float4)(1.805445e-03f, 1.805445e-03f, 1.805445e-03f, 1.805445e-03f))) * x_3) + ((float4)(5.320190e-04f, 5.320190e-04f, 5.320190e-04f, 5.320190e-04f))) * x_3) + ((float4)(-2.965185e-01f, -2.965185e-01f, -2.965185e-01f, -2.965185e-01f))) * x_3) + ((float4)(as_float(-1068474552), as_float(-1068474552), as_float(-1068474552), as_float(-1068474552)))))) + ((float4)(1.000000e+00f, 1.000000e+00f, 1.000000e+00f, 1.000000e+00f))));
    write_imagef(T_multiply_ptr, (int4)((((get_local_id(0) >> 3) + 8) % 11), (get_local_id(0) & 7), ((get_local_id(0) + 64) / 88), 0), as_float4(v__7));
  }
  if (get_local_id(0) < 48) {
    if ((get_local_id(0) & 7) < 6) {
      float4 v__8 = as_float4(READ_IMAGEF(B_ptr_1, image_sampler, ((int4)((get_local_id(0) & 7), 0, 0, 0))));
      float4 x_4 = ((vload4(0, sums_ptr + 8) + v__8) * ((float4)(as_float(1060439283), as_float(1060439283), as_float(1060439283), as_float(1060439283))));
      float4 x_5 = (x_4 * x_4);
      float4 v__9 = (vload4(0, sums_ptr + 8) + v__8) * native_recip((native_exp2((x_4 * ((((((((((((x_5 * ((float4)(as_float(-1258930698), as_float(-1258930698), as_float(-1258930698), as_float(-1258930698)))) + ((float4)(1.727104e-05f, 1.727104e-05f, 1.727104e-05f, 1.727104e-05f))) * x_5) + ((float4)(as_float(-1182288120), as_float(-1182288120), as_float(-1182288120), as_float(-1182288120)))) * x_5) + ((float4)(1.805445e-03f, 1.805445e-03f, 1.805445e-03f, 1.805445e-03f))) * x_5) + ((float4)(5.320190e-04f, 5.320190e-04f, 5.320190e-04f, 5.320190e-04f))) * x_5) + ((float4)(-2.965185e-01f, -2.965185e-01f, -2.965185e-01f, -2.965185e-01f))) * x_5) + ((float4)(as_float(-1068474552), as_float(-1068474552), as_float(-1068474552), as_float(-1068474552)))))) + ((float4)(1.000000e+00f, 1.000000e+00f, 1.000000e+00f, 1.000000e+00f))));
      write_imagef(T_multiply_ptr, (int4)(((get_local_id(0) >> 3) + 5), (get_local_id(0) & 7), 1, 0), as_float4(v__9));
    }
  }
}
