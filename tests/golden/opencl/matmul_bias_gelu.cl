__kernel void matmul_bias_gelu(__read_only image2d_array_t B_ptr, __read_only image2d_array_t B_ptr_1, __write_only image2d_array_t T_multiply_ptr, __read_only image2d_array_t lv_ptr) {
  const sampler_t image_sampler = CLK_NORMALIZED_COORDS_FALSE | CLK_ADDRESS_CLAMP | CLK_FILTER_NEAREST;
  float sums_ptr[16];
  float left_staged_ptr[8];
  float4 right_staged_ptr[2];
  __local float left_shared_ptr[572] __attribute__((aligned(16)));
  __local float4 right_shared_ptr[128];
  float down_ptr[4];
  float across_ptr[4];
  float texel_ptr[4];
  sums_ptr[0] = 0.000000e+00f;
  ... 16 times in all, to
  sums_ptr[15] = 0.000000e+00f;
  int cse_v1 = (get_local_id(0) >> 4);
  int cse_v2 = (get_local_id(0) & 1);
  int cse_v8 = ((get_local_id(0) & 15) >> 2);
  int cse_v9 = ((get_local_id(0) & 3) >> 1);
  int cse_v14 = min((int)(((((get_local_id(0) & 15) >> 2) * 8) + ((get_local_id(0) >> 4) * 2)) + ((get_local_id(0) & 3) >> 1)), (int)21);
  int cse_v15 = (min((int)(((((get_local_id(0) & 15) >> 2) * 8) + ((get_local_id(0) >> 4) * 2)) + ((get_local_id(0) & 3) >> 1)), (int)21) % 11);
  int cse_v16 = (min((int)(((((get_local_id(0) & 15) >> 2) * 8) + ((get_local_id(0) >> 4) * 2)) + ((get_local_id(0) & 3) >> 1)), (int)21) / 11);
  float4 v_ = as_float4(READ_IMAGEF(lv_ptr, image_sampler, ((int4)((min((int)(((((get_local_id(0) & 15) >> 2) * 8) + ((get_local_id(0) >> 4) * 2)) + ((get_local_id(0) & 3) >> 1)), (int)21) % 11), (get_local_id(0) & 1), (min((int)(((((get_local_id(0) & 15) >> 2) * 8) + ((get_local_id(0) >> 4) * 2)) + ((get_local_id(0) & 3) >> 1)), (int)21) / 11), 0))));
  vstore4(v_, 0, left_staged_ptr + 0);
  float4 v__1 = as_float4(READ_IMAGEF(lv_ptr, image_sampler, ((int4)((min((int)(((((get_local_id(0) & 15) >> 2) * 8) + ((get_local_id(0) >> 4) * 2)) + ((get_local_id(0) & 3) >> 1)), (int)21) % 11), ((get_local_id(0) & 1) + 2), (min((int)(((((get_local_id(0) & 15) >> 2) * 8) + ((get_local_id(0) >> 4) * 2)) + ((get_local_id(0) & 3) >> 1)), (int)21) / 11), 0))));
  vstore4(v__1, 0, left_staged_ptr + 4);
  int cse_v3 = (get_local_id(0) >> 3);
  int cse_v4 = (get_local_id(0) & 7);
  int cse_v10 = min((int)(get_local_id(0) & 7), (int)5);
  float4 v__2 = as_float4(READ_IMAGEF(B_ptr, image_sampler, ((int4)((get_local_id(0) >> 3), min((int)(get_local_id(0) & 7), (int)5), 0, 0))));
  right_staged_ptr[0] = v__2;
  int cse_v11 = ((get_local_id(0) >> 3) + 8);
  float4 v__3 = as_float4(READ_IMAGEF(B_ptr, image_sampler, ((int4)(((get_local_id(0) >> 3) + 8), min((int)(get_local_id(0) & 7), (int)5), 0, 0))));
  right_staged_ptr[1] = v__3;
  int cse_v13 = (((((get_local_id(0) & 1) * 144) + ((get_local_id(0) >> 4) * 8)) + (((get_local_id(0) & 3) >> 1) * 4)) + ((get_local_id(0) & 15) >> 2));
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
  int cse_v12 = ((get_local_id(0) >> 3) * 4);
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
    vstore4(v__4, 0, texel_ptr + 0);
    for (int v = 0; v < 4; ++v) {
      texel_ptr[v] = ((sums_ptr[v] + texel_ptr[v]) * (5.000000e-01f + (erf(((sums_ptr[v] + texel_ptr[v]) * as_float(1060439283))) * 5.000000e-01f)));
    }
    float4 v__5 = vload4(0, texel_ptr + 0);
    write_imagef(T_multiply_ptr, (int4)((get_local_id(0) >> 3), (get_local_id(0) & 7), 0, 0), as_float4(v__5));
  }
  if ((get_local_id(0) & 7) < 6) {
    float4 v__6 = as_float4(READ_IMAGEF(B_ptr_1, image_sampler, ((int4)((get_local_id(0) & 7), 0, 0, 0))));
    vstore4(v__6, 0, texel_ptr + 0);
    for (int v_1 = 0; v_1 < 4; ++v_1) {
      int cse_v6 = (v_1 + 4);
      texel_ptr[v_1] = ((sums_ptr[(v_1 + 4)] + texel_ptr[v_1]) * (5.000000e-01f + (erf(((sums_ptr[(v_1 + 4)] + texel_ptr[v_1]) * as_float(1060439283))) * 5.000000e-01f)));
    }
    float4 v__7 = vload4(0, texel_ptr + 0);
    write_imagef(T_multiply_ptr, (int4)((((get_local_id(0) >> 3) + 8) % 11), (get_local_id(0) & 7), ((get_local_id(0) + 64) / 88), 0), as_float4(v__7));
  }
  if (get_local_id(0) < 48) {
    if ((get_local_id(0) & 7) < 6) {
      float4 v__8 = as_float4(READ_IMAGEF(B_ptr_1, image_sampler, ((int4)((get_local_id(0) & 7), 0, 0, 0))));
      vstore4(v__8, 0, texel_ptr + 0);
      for (int v_2 = 0; v_2 < 4; ++v_2) {
        int cse_v7 = (v_2 + 8);
        texel_ptr[v_2] = ((sums_ptr[(v_2 + 8)] + texel_ptr[v_2]) * (5.000000e-01f + (erf(((sums_ptr[(v_2 + 8)] + texel_ptr[v_2]) * as_float(1060439283))) * 5.000000e-01f)));
      }
      float4 v__9 = vload4(0, texel_ptr + 0);
      write_imagef(T_multiply_ptr, (int4)(((get_local_id(0) >> 3) + 5), (get_local_id(0) & 7), 1, 0), as_float4(v__9));
    }
  }
}
