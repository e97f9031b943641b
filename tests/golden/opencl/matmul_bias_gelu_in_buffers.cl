__kernel void matmul_bias_gelu_in_buffers(__global float* restrict B_ptr, __global float* restrict B_ptr_1, __global float* restrict T_multiply_ptr, __global float* restrict lv_ptr) {
  float sums_ptr[8];
  float left_staged_ptr[4];
  float4 right_staged_ptr[2];
  __local float left_shared_ptr[316] __attribute__((aligned(16)));
  __local float right_shared_ptr[512] __attribute__((aligned(16)));
  float down_ptr[4];
  float across_ptr[2];
  sums_ptr[0] = 0.000000e+00f;
  ... 8 times in all, to
  sums_ptr[7] = 0.000000e+00f;
  int cse_v1 = (get_local_id(0) & 31);
  int cse_v2 = (get_local_id(0) >> 5);
  int cse_v3 = (get_local_id(0) & 1);
  int cse_v6 = ((get_local_id(0) & 31) >> 1);
  vstore4((*((const __global float4*)(lv_ptr + (((min((int)((get_group_id(0) * 16) + ((get_local_id(0) & 31) >> 1)), (int)21) * 16) + ((get_local_id(0) >> 5) * 8)) + ((get_local_id(0) & 1) * 4))))), 0, left_staged_ptr + 0);
  int cse_v4 = (get_local_id(0) & 7);
  int cse_v14 = (((get_local_id(0) >> 3) * 24) + (min((int)(get_local_id(0) & 7), (int)5) * 4));
  right_staged_ptr[0] = (*((const __global float4*)(B_ptr + (((get_local_id(0) >> 3) * 24) + (min((int)(get_local_id(0) & 7), (int)5) * 4)))));
  right_staged_ptr[1] = (*((const __global float4*)(B_ptr + ((((get_local_id(0) >> 3) * 24) + (min((int)(get_local_id(0) & 7), (int)5) * 4)) + 192))));
  int cse_v15 = ((((get_local_id(0) >> 5) * 160) + ((get_local_id(0) & 1) * 80)) + ((get_local_id(0) & 31) >> 1));
  left_shared_ptr[((((get_local_id(0) >> 5) * 160) + ((get_local_id(0) & 1) * 80)) + ((get_local_id(0) & 31) >> 1))] = left_staged_ptr[0];
  left_shared_ptr[(((((get_local_id(0) >> 5) * 160) + ((get_local_id(0) & 1) * 80)) + ((get_local_id(0) & 31) >> 1)) + 20)] = left_staged_ptr[1];
  left_shared_ptr[(((((get_local_id(0) >> 5) * 160) + ((get_local_id(0) & 1) * 80)) + ((get_local_id(0) & 31) >> 1)) + 40)] = left_staged_ptr[2];
  left_shared_ptr[(((((get_local_id(0) >> 5) * 160) + ((get_local_id(0) & 1) * 80)) + ((get_local_id(0) & 31) >> 1)) + 60)] = left_staged_ptr[3];
  int cse_v5 = (get_local_id(0) * 4);
  *((__local float4*)(right_shared_ptr + (get_local_id(0) * 4))) = right_staged_ptr[0];
  *((__local float4*)(right_shared_ptr + ((get_local_id(0) * 4) + 256))) = right_staged_ptr[1];
  int cse_v7 = ((get_local_id(0) & 31) >> 3);
  int cse_v10 = (((get_local_id(0) & 31) >> 3) * 4);
  barrier(CLK_LOCAL_MEM_FENCE);
  vstore4((*((const __local float4*)(left_shared_ptr + (((get_local_id(0) & 31) >> 3) * 4)))), 0, down_ptr + 0);
  int cse_v8 = ((get_local_id(0) >> 5) * 16);
  int cse_v9 = ((get_local_id(0) & 7) * 2);
  int cse_v11 = (((get_local_id(0) >> 5) * 16) + ((get_local_id(0) & 7) * 2));
  vstore2((*((const __local float2*)(right_shared_ptr + (((get_local_id(0) >> 5) * 16) + ((get_local_id(0) & 7) * 2))))), 0, across_ptr + 0);
  sums_ptr[0] = (sums_ptr[0] + (down_ptr[0] * across_ptr[0]));
  sums_ptr[1] = (sums_ptr[1] + (down_ptr[0] * across_ptr[1]));
  ... 4 times in all, to
  sums_ptr[6] = (sums_ptr[6] + (down_ptr[3] * across_ptr[0]));
  sums_ptr[7] = (sums_ptr[7] + (down_ptr[3] * across_ptr[1]));
  vstore4((*((const __local float4*)(left_shared_ptr + ((((get_local_id(0) & 31) >> 3) * 4) + 20)))), 0, down_ptr + 0);
  vstore2((*((const __local float2*)(right_shared_ptr + ((((get_local_id(0) >> 5) * 16) + ((get_local_id(0) & 7) * 2)) + 32)))), 0, across_ptr + 0);
  ... 15 times in all, to
  sums_ptr[0] = (sums_ptr[0] + (down_ptr[0] * across_ptr[0]));
  sums_ptr[1] = (sums_ptr[1] + (down_ptr[0] * across_ptr[1]));
  ... 4 times in all, to
  sums_ptr[6] = (sums_ptr[6] + (down_ptr[3] * across_ptr[0]));
  sums_ptr[7] = (sums_ptr[7] + (down_ptr[3] * across_ptr[1]));
  vstore4((*((const __local float4*)(left_shared_ptr + ((((get_local_id(0) & 31) >> 3) * 4) + 300)))), 0, down_ptr + 0);
  vstore2((*((const __local float2*)(right_shared_ptr + ((((get_local_id(0) >> 5) * 16) + ((get_local_id(0) & 7) * 2)) + 480)))), 0, across_ptr + 0);
  sums_ptr[0] = (sums_ptr[0] + (down_ptr[0] * across_ptr[0]));
  sums_ptr[1] = (sums_ptr[1] + (down_ptr[0] * across_ptr[1]));
  ... 4 times in all, to
  sums_ptr[6] = (sums_ptr[6] + (down_ptr[3] * across_ptr[0]));
  sums_ptr[7] = (sums_ptr[7] + (down_ptr[3] * across_ptr[1]));
  int cse_v12 = (((get_local_id(0) >> 5) * 2) + ((get_local_id(0) & 7) >> 2));
  int cse_v16 = ((get_group_id(0) * 8) + (((get_local_id(0) & 31) >> 3) * 2));
  int cse_v17 = ((((get_group_id(0) * 384) + (((get_local_id(0) & 31) >> 3) * 96)) + ((get_local_id(0) >> 5) * 16)) + ((get_local_id(0) & 7) * 2));
  if (((get_group_id(0) * 8) + (((get_local_id(0) & 31) >> 3) * 2)) < 11) {
    if ((((get_local_id(0) >> 5) * 2) + ((get_local_id(0) & 7) >> 2)) < 3) {
      float2 x = ((vload2(0, sums_ptr + 0) + (*((const __global float2*)(B_ptr_1 + (((get_local_id(0) >> 5) * 16) + ((get_local_id(0) & 7) * 2)))))) * ((float2)(as_float(1060439283), as_float(1060439283))));
      float2 x_1 = (x * x);
      *((__global float2*)(T_multiply_ptr + ((((get_group_id(0) * 384) + (((get_local_id(0) & 31) >> 3) * 96)) + ((get_local_id(0) >> 5) * 16)) + ((get_local_id(0) & 7) * 2)))) = ((vload2(0, sums_ptr + 0) + (*((const __global float2*)(B_ptr_1 + (((get_local_id(0) >> 5) * 16) + ((get_local_id(0) & 7) * 2)))))) * native_recip((native_exp2((x * ((((((((((((x_1 * ((float2)(as_float(-1258930698), as_float(-1258930698)))) + ((float2)(1.727104e-05f, 1.727104e-05f))) * x_1) + ((float2)(as_float(-1182288120), as_float(-1182288120)))) * x_1) + ((float2)(1.805445e-03f, 1.805445e-03f))) * x_1) + ((float2)(5.320190e-04f, 5.320190e-04f))) * x_1) + ((float2)(-2.965185e-01f, -2.965185e-01f))) * x_1) + ((float2)(as_float(-1068474552), as_float(-1068474552)))))) + ((float2)(1.000000e+00f, 1.000000e+00f)))));
    }
  }
  if (((get_group_id(0) * 8) + (((get_local_id(0) & 31) >> 3) * 2)) < 11) {
    if ((((get_local_id(0) >> 5) * 2) + ((get_local_id(0) & 7) >> 2)) < 3) {
      float2 x_2 = ((vload2(0, sums_ptr + 2) + (*((const __global float2*)(B_ptr_1 + (((get_local_id(0) >> 5) * 16) + ((get_local_id(0) & 7) * 2)))))) * ((float2)(as_float(1060439283), as_float(1060439283))));
      float2 x_3 = (x_2 * x_2);
      *((__global float2*)(T_multiply_ptr + (((((get_group_id(0) * 384) + (((get_local_id(0) & 31) >> 3) * 96)) + ((get_local_id(0) >> 5) * 16)) + ((get_local_id(0) & 7) * 2)) + 24))) = ((vload2(0, sums_ptr + 2) + (*((const __global float2*)(B_ptr_1 + (((get_local_id(0) >> 5) * 16) + ((get_local_id(0) & 7) * 2)))))) * native_recip((native_exp2((x_2 * ((((((((((((x_3 * ((float2)(as_float(-1258930698), as_float(-1258930698)))) + ((float2)(1.727104e-05f, 1.727104e-05f))) * x_3) + ((float2)(as_float(-1182288120), as_float(-1182288120)))) * x_3) + ((float2)(1.805445e-03f, 1.805445e-03f))) * x_3) + ((float2)(5.320190e-04f, 5.320190e-04f))) * x_3) + ((float2)(-2.965185e-01f, -2.965185e-01f))) * x_3) + ((float2)(as_float(-1068474552), as_float(-1068474552)))))) + ((float2)(1.000000e+00f, 1.000000e+00f)))));
    }
  }
  int cse_v13 = ((get_group_id(0) * 4) + ((get_local_id(0) & 31) >> 3));
  if (((get_group_id(0) * 4) + ((get_local_id(0) & 31) >> 3)) < 5) {
    if ((((get_local_id(0) >> 5) * 2) + ((get_local_id(0) & 7) >> 2)) < 3) {
      float2 x_4 = ((vload2(0, sums_ptr + 4) + (*((const __global float2*)(B_ptr_1 + (((get_local_id(0) >> 5) * 16) + ((get_local_id(0) & 7) * 2)))))) * ((float2)(as_float(1060439283), as_float(1060439283))));
      float2 x_5 = (x_4 * x_4);
      *((__global float2*)(T_multiply_ptr + (((((get_group_id(0) * 384) + (((get_local_id(0) & 31) >> 3) * 96)) + ((get_local_id(0) >> 5) * 16)) + ((get_local_id(0) & 7) * 2)) + 48))) = ((vload2(0, sums_ptr + 4) + (*((const __global float2*)(B_ptr_1 + (((get_local_id(0) >> 5) * 16) + ((get_local_id(0) & 7) * 2)))))) * native_recip((native_exp2((x_4 * ((((((((((((x_5 * ((float2)(as_float(-1258930698), as_float(-1258930698)))) + ((float2)(1.727104e-05f, 1.727104e-05f))) * x_5) + ((float2)(as_float(-1182288120), as_float(-1182288120)))) * x_5) + ((float2)(1.805445e-03f, 1.805445e-03f))) * x_5) + ((float2)(5.320190e-04f, 5.320190e-04f))) * x_5) + ((float2)(-2.965185e-01f, -2.965185e-01f))) * x_5) + ((float2)(as_float(-1068474552), as_float(-1068474552)))))) + ((float2)(1.000000e+00f, 1.000000e+00f)))));
    }
  }
  if (((get_group_id(0) * 4) + ((get_local_id(0) & 31) >> 3)) < 5) {
    if ((((get_local_id(0) >> 5) * 2) + ((get_local_id(0) & 7) >> 2)) < 3) {
      float2 x_6 = ((vload2(0, sums_ptr + 6) + (*((const __global float2*)(B_ptr_1 + (((get_local_id(0) >> 5) * 16) + ((get_local_id(0) & 7) * 2)))))) * ((float2)(as_float(1060439283), as_float(1060439283))));
      float2 x_7 = (x_6 * x_6);
      *((__global float2*)(T_multiply_ptr + (((((get_group_id(0) * 384) + (((get_local_id(0) & 31) >> 3) * 96)) + ((get_local_id(0) >> 5) * 16)) + ((get_local_id(0) & 7) * 2)) + 72))) = ((vload2(0, sums_ptr + 6) + (*((const __global float2*)(B_ptr_1 + (((get_local_id(0) >> 5) * 16) + ((get_local_id(0) & 7) * 2)))))) * native_recip((native_exp2((x_6 * ((((((((((((x_7 * ((float2)(as_float(-1258930698), as_float(-1258930698)))) + ((float2)(1.727104e-05f, 1.727104e-05f))) * x_7) + ((float2)(as_float(-1182288120), as_float(-1182288120)))) * x_7) + ((float2)(1.805445e-03f, 1.805445e-03f))) * x_7) + ((float2)(5.320190e-04f, 5.320190e-04f))) * x_7) + ((float2)(-2.965185e-01f, -2.965185e-01f))) * x_7) + ((float2)(as_float(-1068474552), as_float(-1068474552)))))) + ((float2)(1.000000e+00f, 1.000000e+00f)))));
    }
  }
}
