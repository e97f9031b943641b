__kernel void batched_matmul(__write_only image2d_array_t compute_ptr, __read_only image2d_array_t lv_ptr) {
  const sampler_t image_sampler = CLK_NORMALIZED_COORDS_FALSE | CLK_ADDRESS_CLAMP | CLK_FILTER_NEAREST;
  float sums_ptr[16];
  float left_staged_ptr[8];
  float right_staged_ptr[8];
  __local float left_shared_ptr[572] __attribute__((aligned(16)));
  __local float right_shared_ptr[572] __attribute__((aligned(16)));
  float down_ptr[4];
  float across_ptr[4];
  sums_ptr[0] = 0.000000e+00f;
  ... 16 times in all, to
  sums_ptr[15] = 0.000000e+00f;
  int cse_v1 = (get_local_id(0) >> 4);
  int cse_v2 = (get_local_id(0) & 1);
  int cse_v6 = ((get_local_id(0) & 15) >> 2);
  int cse_v7 = ((get_local_id(0) & 3) >> 1);
  int cse_v15 = min((int)(((((get_local_id(0) & 15) >> 2) * 8) + ((get_local_id(0) >> 4) * 2)) + ((get_local_id(0) & 3) >> 1)), (int)10);
  float4 v_ = as_float4(READ_IMAGEF(lv_ptr, image_sampler, ((int4)(min((int)(((((get_local_id(0) & 15) >> 2) * 8) + ((get_local_id(0) >> 4) * 2)) + ((get_local_id(0) & 3) >> 1)), (int)10), (get_local_id(0) & 1), get_group_id(0), 0))));
  vstore4(v_, 0, left_staged_ptr + 0);
  int cse_v8 = ((get_local_id(0) & 1) + 2);
  float4 v__1 = as_float4(READ_IMAGEF(lv_ptr, image_sampler, ((int4)(min((int)(((((get_local_id(0) & 15) >> 2) * 8) + ((get_local_id(0) >> 4) * 2)) + ((get_local_id(0) & 3) >> 1)), (int)10), ((get_local_id(0) & 1) + 2), get_group_id(0), 0))));
  vstore4(v__1, 0, left_staged_ptr + 4);
  int cse_v3 = (get_local_id(0) >> 1);
  int cse_v9 = min((int)(get_local_id(0) >> 1), (int)10);
  float4 v__2 = as_float4(READ_IMAGEF(lv_ptr, image_sampler, ((int4)(min((int)(get_local_id(0) >> 1), (int)10), (get_local_id(0) & 1), get_group_id(0), 0))));
  vstore4(v__2, 0, right_staged_ptr + 0);
  float4 v__3 = as_float4(READ_IMAGEF(lv_ptr, image_sampler, ((int4)(min((int)(get_local_id(0) >> 1), (int)10), ((get_local_id(0) & 1) + 2), get_group_id(0), 0))));
  vstore4(v__3, 0, right_staged_ptr + 4);
  int cse_v10 = ((get_local_id(0) & 1) * 144);
  int cse_v14 = (((((get_local_id(0) & 1) * 144) + ((get_local_id(0) >> 4) * 8)) + (((get_local_id(0) & 3) >> 1) * 4)) + ((get_local_id(0) & 15) >> 2));
  left_shared_ptr[(((((get_local_id(0) & 1) * 144) + ((get_local_id(0) >> 4) * 8)) + (((get_local_id(0) & 3) >> 1) * 4)) + ((get_local_id(0) & 15) >> 2))] = left_staged_ptr[0];
  left_shared_ptr[((((((get_local_id(0) & 1) * 144) + ((get_local_id(0) >> 4) * 8)) + (((get_local_id(0) & 3) >> 1) * 4)) + ((get_local_id(0) & 15) >> 2)) + 36)] = left_staged_ptr[1];
  left_shared_ptr[((((((get_local_id(0) & 1) * 144) + ((get_local_id(0) >> 4) * 8)) + (((get_local_id(0) & 3) >> 1) * 4)) + ((get_local_id(0) & 15) >> 2)) + 72)] = left_staged_ptr[2];
  left_shared_ptr[((((((get_local_id(0) & 1) * 144) + ((get_local_id(0) >> 4) * 8)) + (((get_local_id(0) & 3) >> 1) * 4)) + ((get_local_id(0) & 15) >> 2)) + 108)] = left_staged_ptr[3];
  left_shared_ptr[((((((get_local_id(0) & 1) * 144) + ((get_local_id(0) >> 4) * 8)) + (((get_local_id(0) & 3) >> 1) * 4)) + ((get_local_id(0) & 15) >> 2)) + 288)] = left_staged_ptr[4];
  ... 4 times in all, to
  left_shared_ptr[((((((get_local_id(0) & 1) * 144) + ((get_local_id(0) >> 4) * 8)) + (((get_local_id(0) & 3) >> 1) * 4)) + ((get_local_id(0) & 15) >> 2)) + 396)] = left_staged_ptr[7];
  int cse_v13 = (((get_local_id(0) & 1) * 144) + (get_local_id(0) >> 1));
  right_shared_ptr[(((get_local_id(0) & 1) * 144) + (get_local_id(0) >> 1))] = right_staged_ptr[0];
  right_shared_ptr[((((get_local_id(0) & 1) * 144) + (get_local_id(0) >> 1)) + 36)] = right_staged_ptr[1];
  right_shared_ptr[((((get_local_id(0) & 1) * 144) + (get_local_id(0) >> 1)) + 72)] = right_staged_ptr[2];
  right_shared_ptr[((((get_local_id(0) & 1) * 144) + (get_local_id(0) >> 1)) + 108)] = right_staged_ptr[3];
  right_shared_ptr[((((get_local_id(0) & 1) * 144) + (get_local_id(0) >> 1)) + 288)] = right_staged_ptr[4];
  ... 4 times in all, to
  right_shared_ptr[((((get_local_id(0) & 1) * 144) + (get_local_id(0) >> 1)) + 396)] = right_staged_ptr[7];
  int cse_v4 = (get_local_id(0) >> 3);
  int cse_v11 = ((get_local_id(0) >> 3) * 4);
  barrier(CLK_LOCAL_MEM_FENCE);
  vstore4((*((const __local float4*)(left_shared_ptr + ((get_local_id(0) >> 3) * 4)))), 0, down_ptr + 0);
  int cse_v5 = (get_local_id(0) & 7);
  int cse_v12 = ((get_local_id(0) & 7) * 4);
  vstore4((*((const __local float4*)(right_shared_ptr + ((get_local_id(0) & 7) * 4)))), 0, across_ptr + 0);
  sums_ptr[0] = (sums_ptr[0] + (down_ptr[0] * across_ptr[0]));
  ... 4 times in all, to
  sums_ptr[3] = (sums_ptr[3] + (down_ptr[0] * across_ptr[3]));
  ... 4 times in all, to
  sums_ptr[12] = (sums_ptr[12] + (down_ptr[3] * across_ptr[0]));
  ... 4 times in all, to
  sums_ptr[15] = (sums_ptr[15] + (down_ptr[3] * across_ptr[3]));
  vstore4((*((const __local float4*)(left_shared_ptr + (((get_local_id(0) >> 3) * 4) + 36)))), 0, down_ptr + 0);
  vstore4((*((const __local float4*)(right_shared_ptr + (((get_local_id(0) & 7) * 4) + 36)))), 0, across_ptr + 0);
  ... 15 times in all, to
  sums_ptr[0] = (sums_ptr[0] + (down_ptr[0] * across_ptr[0]));
  ... 4 times in all, to
  sums_ptr[3] = (sums_ptr[3] + (down_ptr[0] * across_ptr[3]));
  ... 4 times in all, to
  sums_ptr[12] = (sums_ptr[12] + (down_ptr[3] * across_ptr[0]));
  ... 4 times in all, to
  sums_ptr[15] = (sums_ptr[15] + (down_ptr[3] * across_ptr[3]));
  vstore4((*((const __local float4*)(left_shared_ptr + (((get_local_id(0) >> 3) * 4) + 540)))), 0, down_ptr + 0);
  vstore4((*((const __local float4*)(right_shared_ptr + (((get_local_id(0) & 7) * 4) + 540)))), 0, across_ptr + 0);
  sums_ptr[0] = (sums_ptr[0] + (down_ptr[0] * across_ptr[0]));
  ... 4 times in all, to
  sums_ptr[3] = (sums_ptr[3] + (down_ptr[0] * across_ptr[3]));
  ... 4 times in all, to
  sums_ptr[12] = (sums_ptr[12] + (down_ptr[3] * across_ptr[0]));
  ... 4 times in all, to
  sums_ptr[15] = (sums_ptr[15] + (down_ptr[3] * across_ptr[3]));
  if ((get_local_id(0) & 7) < 3) {
    float4 v__4 = max(vload4(0, sums_ptr + 0), ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)));
    write_imagef(compute_ptr, (int4)((get_local_id(0) >> 3), (get_local_id(0) & 7), get_group_id(0), 0), as_float4(v__4));
  }
  if (get_local_id(0) < 24) {
    if ((get_local_id(0) & 7) < 3) {
      float4 v__5 = max(vload4(0, sums_ptr + 4), ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)));
      write_imagef(compute_ptr, (int4)(((get_local_id(0) >> 3) + 8), (get_local_id(0) & 7), get_group_id(0), 0), as_float4(v__5));
    }
  }
}
