__kernel void attention(__read_only image2d_array_t lv1_lv4_lv11_matmul_ptr, __write_only image2d_array_t matmul_ptr) {
  const sampler_t image_sampler = CLK_NORMALIZED_COORDS_FALSE | CLK_ADDRESS_CLAMP | CLK_FILTER_NEAREST;
  float matrix0_staged_ptr[4];
  __local float left0_ptr[1280] __attribute__((aligned(16)));
  float sums0_ptr[16];
  __local float work_ptr[1024] __attribute__((aligned(16)));
  float down0_ptr[16];
  float across0_ptr[4];
  float4 matrix1_staged_ptr[1];
  float kept0_own_ptr[6];
  float T_softmax_maxelem_own_ptr[1];
  __local float T_softmax_maxelem_parts_ptr[64] __attribute__((aligned(16)));
  float T_softmax_exp_own_ptr[6];
  float T_softmax_expsum_own_ptr[1];
  float sums1_ptr[16];
  float down1_ptr[16];
  float across1_ptr[4];
  int cse_v1 = (get_local_id(0) >> 1);
  int cse_v2 = (get_group_id(0) & 1);
  int cse_v3 = (get_local_id(0) & 1);
  int cse_v4 = (get_group_id(0) >> 1);
  int cse_v11 = ((get_group_id(0) & 1) * 2);
  float4 v_ = as_float4(READ_IMAGEF(lv1_lv4_lv11_matmul_ptr, image_sampler, ((int4)(min((int)(get_local_id(0) >> 1), (int)10), ((((get_group_id(0) & 1) * 2) + (get_local_id(0) & 1)) + 4), (get_group_id(0) >> 1), 0))));
  vstore4(v_, 0, matrix0_staged_ptr + 0);
  int cse_v5 = (get_local_id(0) % 10);
  int cse_v6 = (get_local_id(0) * 4);
  if ((get_local_id(0) % 10) < 2) {
    float4 v__1 = as_float4(READ_IMAGEF(lv1_lv4_lv11_matmul_ptr, image_sampler, ((int4)((get_local_id(0) / 10), (((get_group_id(0) & 1) * 2) + (get_local_id(0) % 10)), (get_group_id(0) >> 1), 0))));
    *((__local float4*)(left0_ptr + (get_local_id(0) * 4))) = v__1;
  } else {
    *((__local float4*)(left0_ptr + (get_local_id(0) * 4))) = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
  }
  int cse_v12 = ((get_local_id(0) * 4) + 256);
  if ((((get_local_id(0) >> 1) + 2) % 5) < 1) {
    float4 v__2 = as_float4(READ_IMAGEF(lv1_lv4_lv11_matmul_ptr, image_sampler, ((int4)(min((int)((get_local_id(0) + 64) / 10), (int)10), (((get_group_id(0) & 1) * 2) + ((get_local_id(0) + 4) % 10)), (get_group_id(0) >> 1), 0))));
    *((__local float4*)(left0_ptr + ((get_local_id(0) * 4) + 256))) = v__2;
  } else {
    *((__local float4*)(left0_ptr + ((get_local_id(0) * 4) + 256))) = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
  }
  int cse_v13 = ((get_local_id(0) * 4) + 512);
  if ((((get_local_id(0) >> 1) + 4) % 5) < 1) {
    float4 v__3 = as_float4(READ_IMAGEF(lv1_lv4_lv11_matmul_ptr, image_sampler, ((int4)(10, (((get_group_id(0) & 1) * 2) + ((get_local_id(0) + 8) % 10)), (get_group_id(0) >> 1), 0))));
    *((__local float4*)(left0_ptr + ((get_local_id(0) * 4) + 512))) = v__3;
  } else {
    *((__local float4*)(left0_ptr + ((get_local_id(0) * 4) + 512))) = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
  }
  int cse_v14 = ((get_local_id(0) * 4) + 768);
  if ((((get_local_id(0) >> 1) + 1) % 5) < 1) {
    float4 v__4 = as_float4(READ_IMAGEF(lv1_lv4_lv11_matmul_ptr, image_sampler, ((int4)(10, (((get_group_id(0) & 1) * 2) + ((get_local_id(0) + 2) % 10)), (get_group_id(0) >> 1), 0))));
    *((__local float4*)(left0_ptr + ((get_local_id(0) * 4) + 768))) = v__4;
  } else {
    *((__local float4*)(left0_ptr + ((get_local_id(0) * 4) + 768))) = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
  }
  int cse_v15 = ((get_local_id(0) * 4) + 1024);
  if ((((get_local_id(0) >> 1) + 3) % 5) < 1) {
    float4 v__5 = as_float4(READ_IMAGEF(lv1_lv4_lv11_matmul_ptr, image_sampler, ((int4)(10, (((get_group_id(0) & 1) * 2) + ((get_local_id(0) + 6) % 10)), (get_group_id(0) >> 1), 0))));
    *((__local float4*)(left0_ptr + ((get_local_id(0) * 4) + 1024))) = v__5;
  } else {
    *((__local float4*)(left0_ptr + ((get_local_id(0) * 4) + 1024))) = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
  }
  sums0_ptr[0] = 0.000000e+00f;
  ... 16 times in all, to
  sums0_ptr[15] = 0.000000e+00f;
  int cse_v19 = (((get_local_id(0) & 1) * 144) + (get_local_id(0) >> 1));
  work_ptr[(((get_local_id(0) & 1) * 144) + (get_local_id(0) >> 1))] = matrix0_staged_ptr[0];
  work_ptr[((((get_local_id(0) & 1) * 144) + (get_local_id(0) >> 1)) + 36)] = matrix0_staged_ptr[1];
  work_ptr[((((get_local_id(0) & 1) * 144) + (get_local_id(0) >> 1)) + 72)] = matrix0_staged_ptr[2];
  work_ptr[((((get_local_id(0) & 1) * 144) + (get_local_id(0) >> 1)) + 108)] = matrix0_staged_ptr[3];
  int cse_v16 = ((get_local_id(0) >> 3) * 40);
  barrier(CLK_LOCAL_MEM_FENCE);
  vstore4((*((const __local float4*)(left0_ptr + ((get_local_id(0) >> 3) * 40)))), 0, down0_ptr + 0);
  vstore4((*((const __local float4*)(left0_ptr + (((get_local_id(0) >> 3) * 40) + 320)))), 0, down0_ptr + 4);
  vstore4((*((const __local float4*)(left0_ptr + (((get_local_id(0) >> 3) * 40) + 640)))), 0, down0_ptr + 8);
  vstore4((*((const __local float4*)(left0_ptr + (((get_local_id(0) >> 3) * 40) + 960)))), 0, down0_ptr + 12);
  int cse_v17 = ((get_local_id(0) & 7) * 4);
  vstore4((*((const __local float4*)(work_ptr + ((get_local_id(0) & 7) * 4)))), 0, across0_ptr + 0);
  sums0_ptr[0] = (sums0_ptr[0] + (down0_ptr[0] * across0_ptr[0]));
  ... 4 times in all, to
  sums0_ptr[3] = (sums0_ptr[3] + (down0_ptr[0] * across0_ptr[3]));
  ... 4 times in all, to
  sums0_ptr[12] = (sums0_ptr[12] + (down0_ptr[12] * across0_ptr[0]));
  ... 4 times in all, to
  sums0_ptr[15] = (sums0_ptr[15] + (down0_ptr[12] * across0_ptr[3]));
  vstore4((*((const __local float4*)(work_ptr + (((get_local_id(0) & 7) * 4) + 36)))), 0, across0_ptr + 0);
  sums0_ptr[0] = (sums0_ptr[0] + (down0_ptr[1] * across0_ptr[0]));
  ... 4 times in all, to
  sums0_ptr[3] = (sums0_ptr[3] + (down0_ptr[1] * across0_ptr[3]));
  ... 4 times in all, to
  sums0_ptr[12] = (sums0_ptr[12] + (down0_ptr[13] * across0_ptr[0]));
  ... 4 times in all, to
  sums0_ptr[15] = (sums0_ptr[15] + (down0_ptr[13] * across0_ptr[3]));
  vstore4((*((const __local float4*)(work_ptr + (((get_local_id(0) & 7) * 4) + 72)))), 0, across0_ptr + 0);
  sums0_ptr[0] = (sums0_ptr[0] + (down0_ptr[2] * across0_ptr[0]));
  ... 4 times in all, to
  sums0_ptr[3] = (sums0_ptr[3] + (down0_ptr[2] * across0_ptr[3]));
  ... 4 times in all, to
  sums0_ptr[12] = (sums0_ptr[12] + (down0_ptr[14] * across0_ptr[0]));
  ... 4 times in all, to
  sums0_ptr[15] = (sums0_ptr[15] + (down0_ptr[14] * across0_ptr[3]));
  vstore4((*((const __local float4*)(work_ptr + (((get_local_id(0) & 7) * 4) + 108)))), 0, across0_ptr + 0);
  sums0_ptr[0] = (sums0_ptr[0] + (down0_ptr[3] * across0_ptr[0]));
  ... 4 times in all, to
  sums0_ptr[3] = (sums0_ptr[3] + (down0_ptr[3] * across0_ptr[3]));
  ... 4 times in all, to
  sums0_ptr[12] = (sums0_ptr[12] + (down0_ptr[15] * across0_ptr[0]));
  ... 4 times in all, to
  sums0_ptr[15] = (sums0_ptr[15] + (down0_ptr[15] * across0_ptr[3]));
  vstore4((*((const __local float4*)(left0_ptr + (((get_local_id(0) >> 3) * 40) + 4)))), 0, down0_ptr + 0);
  ... 4 times in all, to
  vstore4((*((const __local float4*)(left0_ptr + (((get_local_id(0) >> 3) * 40) + 964)))), 0, down0_ptr + 12);
  vstore4((*((const __local float4*)(work_ptr + (((get_local_id(0) & 7) * 4) + 144)))), 0, across0_ptr + 0);
  sums0_ptr[0] = (sums0_ptr[0] + (down0_ptr[0] * across0_ptr[0]));
  ... 4 times in all, to
  sums0_ptr[3] = (sums0_ptr[3] + (down0_ptr[0] * across0_ptr[3]));
  ... 4 times in all, to
  sums0_ptr[12] = (sums0_ptr[12] + (down0_ptr[12] * across0_ptr[0]));
  ... 4 times in all, to
  sums0_ptr[15] = (sums0_ptr[15] + (down0_ptr[12] * across0_ptr[3]));
  ... 4 times in all, to
  vstore4((*((const __local float4*)(work_ptr + (((get_local_id(0) & 7) * 4) + 252)))), 0, across0_ptr + 0);
  sums0_ptr[0] = (sums0_ptr[0] + (down0_ptr[3] * across0_ptr[0]));
  ... 4 times in all, to
  sums0_ptr[3] = (sums0_ptr[3] + (down0_ptr[3] * across0_ptr[3]));
  ... 4 times in all, to
  sums0_ptr[12] = (sums0_ptr[12] + (down0_ptr[15] * across0_ptr[0]));
  ... 4 times in all, to
  sums0_ptr[15] = (sums0_ptr[15] + (down0_ptr[15] * across0_ptr[3]));
  int cse_v20 = (((get_local_id(0) >> 3) * 40) + ((get_local_id(0) & 7) * 4));
  barrier(CLK_LOCAL_MEM_FENCE);
  *((__local float4*)(left0_ptr + (((get_local_id(0) >> 3) * 40) + ((get_local_id(0) & 7) * 4)))) = vload4(0, sums0_ptr + 0);
  *((__local float4*)(left0_ptr + ((((get_local_id(0) >> 3) * 40) + ((get_local_id(0) & 7) * 4)) + 320))) = vload4(0, sums0_ptr + 4);
  *((__local float4*)(left0_ptr + ((((get_local_id(0) >> 3) * 40) + ((get_local_id(0) & 7) * 4)) + 640))) = vload4(0, sums0_ptr + 8);
  *((__local float4*)(left0_ptr + ((((get_local_id(0) >> 3) * 40) + ((get_local_id(0) & 7) * 4)) + 960))) = vload4(0, sums0_ptr + 12);
  int cse_v7 = (get_local_id(0) >> 2);
  int cse_v8 = (get_local_id(0) & 3);
  if (get_local_id(0) < 44) {
    float4 v__6 = as_float4(READ_IMAGEF(lv1_lv4_lv11_matmul_ptr, image_sampler, ((int4)((get_local_id(0) >> 2), ((((get_group_id(0) & 1) * 2) + min((int)(get_local_id(0) & 3), (int)1)) + 8), (get_group_id(0) >> 1), 0))));
    matrix1_staged_ptr[0] = v__6;
  } else {
    matrix1_staged_ptr[0] = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
  }
  int cse_v21 = (((get_local_id(0) >> 1) * 40) + (get_local_id(0) & 1));
  barrier(CLK_LOCAL_MEM_FENCE);
  kept0_own_ptr[0] = left0_ptr[(((get_local_id(0) >> 1) * 40) + (get_local_id(0) & 1))];
  int cse_v25 = ((((get_local_id(0) >> 1) * 40) + (get_local_id(0) & 1)) + 2);
  kept0_own_ptr[1] = left0_ptr[((((get_local_id(0) >> 1) * 40) + (get_local_id(0) & 1)) + 2)];
  int cse_v26 = ((((get_local_id(0) >> 1) * 40) + (get_local_id(0) & 1)) + 4);
  kept0_own_ptr[2] = left0_ptr[((((get_local_id(0) >> 1) * 40) + (get_local_id(0) & 1)) + 4)];
  int cse_v27 = ((((get_local_id(0) >> 1) * 40) + (get_local_id(0) & 1)) + 6);
  kept0_own_ptr[3] = left0_ptr[((((get_local_id(0) >> 1) * 40) + (get_local_id(0) & 1)) + 6)];
  int cse_v28 = ((((get_local_id(0) >> 1) * 40) + (get_local_id(0) & 1)) + 8);
  kept0_own_ptr[4] = left0_ptr[((((get_local_id(0) >> 1) * 40) + (get_local_id(0) & 1)) + 8)];
  int cse_v29 = ((((get_local_id(0) >> 1) * 40) + (get_local_id(0) & 1)) + 10);
  if ((get_local_id(0) & 1) < 1) {
    kept0_own_ptr[5] = left0_ptr[((((get_local_id(0) >> 1) * 40) + (get_local_id(0) & 1)) + 10)];
  }
  T_softmax_maxelem_own_ptr[0] = -INFINITY;
  T_softmax_maxelem_own_ptr[0] = max((float)T_softmax_maxelem_own_ptr[0], (float)kept0_own_ptr[0]);
  ... 5 times in all, to
  T_softmax_maxelem_own_ptr[0] = max((float)T_softmax_maxelem_own_ptr[0], (float)kept0_own_ptr[4]);
  if ((get_local_id(0) & 1) < 1) {
    T_softmax_maxelem_own_ptr[0] = max((float)T_softmax_maxelem_own_ptr[0], (float)kept0_own_ptr[5]);
  }
  T_softmax_maxelem_parts_ptr[get_local_id(0)] = T_softmax_maxelem_own_ptr[0];
  int cse_v18 = ((get_local_id(0) >> 1) * 2);
  barrier(CLK_LOCAL_MEM_FENCE);
  T_softmax_maxelem_own_ptr[0] = T_softmax_maxelem_parts_ptr[((get_local_id(0) >> 1) * 2)];
  int cse_v22 = (((get_local_id(0) >> 1) * 2) + 1);
  T_softmax_maxelem_own_ptr[0] = max((float)T_softmax_maxelem_own_ptr[0], (float)T_softmax_maxelem_parts_ptr[(((get_local_id(0) >> 1) * 2) + 1)]);
  float x = (kept0_own_ptr[0] - T_softmax_maxelem_own_ptr[0]);
  T_softmax_exp_own_ptr[0] = native_exp2((x * 1.442695e+00f));
  float x_1 = (kept0_own_ptr[1] - T_softmax_maxelem_own_ptr[0]);
  T_softmax_exp_own_ptr[1] = native_exp2((x_1 * 1.442695e+00f));
  ... 4 times in all, to
  float x_4 = (kept0_own_ptr[4] - T_softmax_maxelem_own_ptr[0]);
  T_softmax_exp_own_ptr[4] = native_exp2((x_4 * 1.442695e+00f));
  if ((get_local_id(0) & 1) < 1) {
    float x_5 = (kept0_own_ptr[5] - T_softmax_maxelem_own_ptr[0]);
    T_softmax_exp_own_ptr[5] = native_exp2((x_5 * 1.442695e+00f));
  }
  left0_ptr[(((get_local_id(0) >> 1) * 40) + (get_local_id(0) & 1))] = T_softmax_exp_own_ptr[0];
  left0_ptr[((((get_local_id(0) >> 1) * 40) + (get_local_id(0) & 1)) + 2)] = T_softmax_exp_own_ptr[1];
  ... 4 times in all, to
  left0_ptr[((((get_local_id(0) >> 1) * 40) + (get_local_id(0) & 1)) + 8)] = T_softmax_exp_own_ptr[4];
  if ((get_local_id(0) & 1) < 1) {
    left0_ptr[((((get_local_id(0) >> 1) * 40) + (get_local_id(0) & 1)) + 10)] = T_softmax_exp_own_ptr[5];
  }
  left0_ptr[((((get_local_id(0) >> 1) * 40) + (get_local_id(0) & 1)) + 11)] = 0.000000e+00f;
  ... 14 times in all, to
  left0_ptr[((((get_local_id(0) >> 1) * 40) + (get_local_id(0) & 1)) + 37)] = 0.000000e+00f;
  if ((get_local_id(0) & 1) < 1) {
    left0_ptr[((((get_local_id(0) >> 1) * 40) + (get_local_id(0) & 1)) + 39)] = 0.000000e+00f;
  }
  T_softmax_expsum_own_ptr[0] = 0.000000e+00f;
  T_softmax_expsum_own_ptr[0] = (T_softmax_expsum_own_ptr[0] + T_softmax_exp_own_ptr[0]);
  ... 5 times in all, to
  T_softmax_expsum_own_ptr[0] = (T_softmax_expsum_own_ptr[0] + T_softmax_exp_own_ptr[4]);
  if ((get_local_id(0) & 1) < 1) {
    T_softmax_expsum_own_ptr[0] = (T_softmax_expsum_own_ptr[0] + T_softmax_exp_own_ptr[5]);
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  T_softmax_maxelem_parts_ptr[get_local_id(0)] = T_softmax_expsum_own_ptr[0];
  barrier(CLK_LOCAL_MEM_FENCE);
  T_softmax_expsum_own_ptr[0] = T_softmax_maxelem_parts_ptr[((get_local_id(0) >> 1) * 2)];
  T_softmax_expsum_own_ptr[0] = (T_softmax_expsum_own_ptr[0] + T_softmax_maxelem_parts_ptr[(((get_local_id(0) >> 1) * 2) + 1)]);
  barrier(CLK_LOCAL_MEM_FENCE);
  if ((get_local_id(0) % 2) == 0) {
    T_softmax_maxelem_parts_ptr[(get_local_id(0) >> 1)] = T_softmax_expsum_own_ptr[0];
  }
  sums1_ptr[0] = 0.000000e+00f;
  ... 16 times in all, to
  sums1_ptr[15] = 0.000000e+00f;
  *((__local float4*)(work_ptr + (get_local_id(0) * 4))) = matrix1_staged_ptr[0];
  int cse_v9 = (get_local_id(0) & 31);
  int cse_v10 = (get_local_id(0) >> 5);
  int cse_v30 = ((((get_local_id(0) & 31) >> 2) * 40) + ((get_local_id(0) >> 5) * 8));
  vstore4((*((const __local float4*)(left0_ptr + ((((get_local_id(0) & 31) >> 2) * 40) + ((get_local_id(0) >> 5) * 8))))), 0, down1_ptr + 0);
  vstore4((*((const __local float4*)(left0_ptr + (((((get_local_id(0) & 31) >> 2) * 40) + ((get_local_id(0) >> 5) * 8)) + 320)))), 0, down1_ptr + 4);
  vstore4((*((const __local float4*)(left0_ptr + (((((get_local_id(0) & 31) >> 2) * 40) + ((get_local_id(0) >> 5) * 8)) + 640)))), 0, down1_ptr + 8);
  vstore4((*((const __local float4*)(left0_ptr + (((((get_local_id(0) & 31) >> 2) * 40) + ((get_local_id(0) >> 5) * 8)) + 960)))), 0, down1_ptr + 12);
  int cse_v23 = (((get_local_id(0) >> 5) * 128) + ((get_local_id(0) & 3) * 4));
  barrier(CLK_LOCAL_MEM_FENCE);
  vstore4((*((const __local float4*)(work_ptr + (((get_local_id(0) >> 5) * 128) + ((get_local_id(0) & 3) * 4))))), 0, across1_ptr + 0);
  sums1_ptr[0] = (sums1_ptr[0] + (down1_ptr[0] * across1_ptr[0]));
  ... 4 times in all, to
  sums1_ptr[3] = (sums1_ptr[3] + (down1_ptr[0] * across1_ptr[3]));
  ... 4 times in all, to
  sums1_ptr[12] = (sums1_ptr[12] + (down1_ptr[12] * across1_ptr[0]));
  ... 4 times in all, to
  sums1_ptr[15] = (sums1_ptr[15] + (down1_ptr[12] * across1_ptr[3]));
  vstore4((*((const __local float4*)(work_ptr + ((((get_local_id(0) >> 5) * 128) + ((get_local_id(0) & 3) * 4)) + 16)))), 0, across1_ptr + 0);
  sums1_ptr[0] = (sums1_ptr[0] + (down1_ptr[1] * across1_ptr[0]));
  ... 4 times in all, to
  sums1_ptr[3] = (sums1_ptr[3] + (down1_ptr[1] * across1_ptr[3]));
  ... 4 times in all, to
  sums1_ptr[12] = (sums1_ptr[12] + (down1_ptr[13] * across1_ptr[0]));
  ... 4 times in all, to
  sums1_ptr[15] = (sums1_ptr[15] + (down1_ptr[13] * across1_ptr[3]));
  vstore4((*((const __local float4*)(work_ptr + ((((get_local_id(0) >> 5) * 128) + ((get_local_id(0) & 3) * 4)) + 32)))), 0, across1_ptr + 0);
  sums1_ptr[0] = (sums1_ptr[0] + (down1_ptr[2] * across1_ptr[0]));
  ... 4 times in all, to
  sums1_ptr[3] = (sums1_ptr[3] + (down1_ptr[2] * across1_ptr[3]));
  ... 4 times in all, to
  sums1_ptr[12] = (sums1_ptr[12] + (down1_ptr[14] * across1_ptr[0]));
  ... 4 times in all, to
  sums1_ptr[15] = (sums1_ptr[15] + (down1_ptr[14] * across1_ptr[3]));
  vstore4((*((const __local float4*)(work_ptr + ((((get_local_id(0) >> 5) * 128) + ((get_local_id(0) & 3) * 4)) + 48)))), 0, across1_ptr + 0);
  sums1_ptr[0] = (sums1_ptr[0] + (down1_ptr[3] * across1_ptr[0]));
  ... 4 times in all, to
  sums1_ptr[3] = (sums1_ptr[3] + (down1_ptr[3] * across1_ptr[3]));
  ... 4 times in all, to
  sums1_ptr[12] = (sums1_ptr[12] + (down1_ptr[15] * across1_ptr[0]));
  ... 4 times in all, to
  sums1_ptr[15] = (sums1_ptr[15] + (down1_ptr[15] * across1_ptr[3]));
  vstore4((*((const __local float4*)(left0_ptr + (((((get_local_id(0) & 31) >> 2) * 40) + ((get_local_id(0) >> 5) * 8)) + 4)))), 0, down1_ptr + 0);
  ... 4 times in all, to
  vstore4((*((const __local float4*)(left0_ptr + (((((get_local_id(0) & 31) >> 2) * 40) + ((get_local_id(0) >> 5) * 8)) + 964)))), 0, down1_ptr + 12);
  vstore4((*((const __local float4*)(work_ptr + ((((get_local_id(0) >> 5) * 128) + ((get_local_id(0) & 3) * 4)) + 64)))), 0, across1_ptr + 0);
  sums1_ptr[0] = (sums1_ptr[0] + (down1_ptr[0] * across1_ptr[0]));
  ... 4 times in all, to
  sums1_ptr[3] = (sums1_ptr[3] + (down1_ptr[0] * across1_ptr[3]));
  ... 4 times in all, to
  sums1_ptr[12] = (sums1_ptr[12] + (down1_ptr[12] * across1_ptr[0]));
  ... 4 times in all, to
  sums1_ptr[15] = (sums1_ptr[15] + (down1_ptr[12] * across1_ptr[3]));
  ... 4 times in all, to
  vstore4((*((const __local float4*)(work_ptr + ((((get_local_id(0) >> 5) * 128) + ((get_local_id(0) & 3) * 4)) + 112)))), 0, across1_ptr + 0);
  sums1_ptr[0] = (sums1_ptr[0] + (down1_ptr[3] * across1_ptr[0]));
  ... 4 times in all, to
  sums1_ptr[3] = (sums1_ptr[3] + (down1_ptr[3] * across1_ptr[3]));
  ... 4 times in all, to
  sums1_ptr[12] = (sums1_ptr[12] + (down1_ptr[15] * across1_ptr[0]));
  ... 4 times in all, to
  sums1_ptr[15] = (sums1_ptr[15] + (down1_ptr[15] * across1_ptr[3]));
  int cse_v24 = (((get_local_id(0) >> 5) * 512) + ((get_local_id(0) & 31) * 4));
  barrier(CLK_LOCAL_MEM_FENCE);
  *((__local float4*)(work_ptr + (((get_local_id(0) >> 5) * 512) + ((get_local_id(0) & 31) * 4)))) = vload4(0, sums1_ptr + 0);
  *((__local float4*)(work_ptr + ((((get_local_id(0) >> 5) * 512) + ((get_local_id(0) & 31) * 4)) + 128))) = vload4(0, sums1_ptr + 4);
  *((__local float4*)(work_ptr + ((((get_local_id(0) >> 5) * 512) + ((get_local_id(0) & 31) * 4)) + 256))) = vload4(0, sums1_ptr + 8);
  *((__local float4*)(work_ptr + ((((get_local_id(0) >> 5) * 512) + ((get_local_id(0) & 31) * 4)) + 384))) = vload4(0, sums1_ptr + 12);
  barrier(CLK_LOCAL_MEM_FENCE);
  if (get_local_id(0) < 44) {
    if ((get_local_id(0) & 3) < 2) {
      float4 v__7 = ((*((const __local float4*)(work_ptr + (get_local_id(0) * 4)))) + (*((const __local float4*)(work_ptr + ((get_local_id(0) * 4) + 512))))) / ((float4)(T_softmax_maxelem_parts_ptr[(get_local_id(0) >> 2)], T_softmax_maxelem_parts_ptr[(get_local_id(0) >> 2)], T_softmax_maxelem_parts_ptr[(get_local_id(0) >> 2)], T_softmax_maxelem_parts_ptr[(get_local_id(0) >> 2)]));
      write_imagef(matmul_ptr, (int4)((get_local_id(0) >> 2), (get_group_id(0) & 1), (((get_group_id(0) >> 1) * 2) + (get_local_id(0) & 3)), 0), as_float4(v__7));
    }
  }
}
