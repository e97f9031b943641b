__kernel void layer_norm(__read_only image2d_array_t B_ptr, __read_only image2d_array_t C_ptr, __write_only image2d_array_t T_layer_norm_ptr, __read_only image2d_array_t lv_ptr) {
  const sampler_t image_sampler = CLK_NORMALIZED_COORDS_FALSE | CLK_ADDRESS_CLAMP | CLK_FILTER_NEAREST;
  float row_row_ptr[8];
  float lv_sum_own_ptr[4];
  __local float lv_sum_parts_ptr[4] __attribute__((aligned(16)));
  float lv_sum_ptr[1];
  float lv_var_sum_own_ptr[4];
  float lv_var_sum_ptr[1];
  float texel_ptr[4];
  float texel_ptr_1[4];
  int cse_v1 = (get_local_id(0) & 1);
  int cse_v2 = (get_local_id(0) >> 1);
  int cse_v3 = ((get_group_id(0) * 2) + (get_local_id(0) & 1));
  int cse_v6 = (((get_group_id(0) * 2) + (get_local_id(0) & 1)) % 11);
  int cse_v7 = (((get_group_id(0) * 2) + (get_local_id(0) & 1)) / 11);
  float4 v_ = as_float4(READ_IMAGEF(lv_ptr, image_sampler, ((int4)((((get_group_id(0) * 2) + (get_local_id(0) & 1)) % 11), (get_local_id(0) >> 1), (((get_group_id(0) * 2) + (get_local_id(0) & 1)) / 11), 0))));
  vstore4(v_, 0, row_row_ptr + 0);
  int cse_v4 = ((get_local_id(0) >> 1) + 2);
  float4 v__1 = as_float4(READ_IMAGEF(lv_ptr, image_sampler, ((int4)((((get_group_id(0) * 2) + (get_local_id(0) & 1)) % 11), ((get_local_id(0) >> 1) + 2), (((get_group_id(0) * 2) + (get_local_id(0) & 1)) / 11), 0))));
  vstore4(v__1, 0, row_row_ptr + 4);
  vstore4(((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)), 0, lv_sum_own_ptr + 0);
  vstore4((vload4(0, lv_sum_own_ptr + 0) + vload4(0, row_row_ptr + 0)), 0, lv_sum_own_ptr + 0);
  vstore4((vload4(0, lv_sum_own_ptr + 0) + vload4(0, row_row_ptr + 4)), 0, lv_sum_own_ptr + 0);
  lv_sum_own_ptr[0] = (((lv_sum_own_ptr[0] + lv_sum_own_ptr[1]) + lv_sum_own_ptr[2]) + lv_sum_own_ptr[3]);
  lv_sum_parts_ptr[get_local_id(0)] = lv_sum_own_ptr[0];
  barrier(CLK_LOCAL_MEM_FENCE);
  lv_sum_ptr[0] = lv_sum_parts_ptr[(get_local_id(0) & 1)];
  int cse_v5 = ((get_local_id(0) & 1) + 2);
  lv_sum_ptr[0] = (lv_sum_ptr[0] + lv_sum_parts_ptr[((get_local_id(0) & 1) + 2)]);
  vstore4(((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)), 0, lv_var_sum_own_ptr + 0);
  vstore4((vload4(0, lv_var_sum_own_ptr + 0) + ((vload4(0, row_row_ptr + 0) - ((float4)((lv_sum_ptr[0] / 1.600000e+01f), (lv_sum_ptr[0] / 1.600000e+01f), (lv_sum_ptr[0] / 1.600000e+01f), (lv_sum_ptr[0] / 1.600000e+01f)))) * (vload4(0, row_row_ptr + 0) - ((float4)((lv_sum_ptr[0] / 1.600000e+01f), (lv_sum_ptr[0] / 1.600000e+01f), (lv_sum_ptr[0] / 1.600000e+01f), (lv_sum_ptr[0] / 1.600000e+01f)))))), 0, lv_var_sum_own_ptr + 0);
  vstore4((vload4(0, lv_var_sum_own_ptr + 0) + ((vload4(0, row_row_ptr + 4) - ((float4)((lv_sum_ptr[0] / 1.600000e+01f), (lv_sum_ptr[0] / 1.600000e+01f), (lv_sum_ptr[0] / 1.600000e+01f), (lv_sum_ptr[0] / 1.600000e+01f)))) * (vload4(0, row_row_ptr + 4) - ((float4)((lv_sum_ptr[0] / 1.600000e+01f), (lv_sum_ptr[0] / 1.600000e+01f), (lv_sum_ptr[0] / 1.600000e+01f), (lv_sum_ptr[0] / 1.600000e+01f)))))), 0, lv_var_sum_own_ptr + 0);
  lv_var_sum_own_ptr[0] = (((lv_var_sum_own_ptr[0] + lv_var_sum_own_ptr[1]) + lv_var_sum_own_ptr[2]) + lv_var_sum_own_ptr[3]);
  barrier(CLK_LOCAL_MEM_FENCE);
  lv_sum_parts_ptr[get_local_id(0)] = lv_var_sum_own_ptr[0];
  barrier(CLK_LOCAL_MEM_FENCE);
  lv_var_sum_ptr[0] = lv_sum_parts_ptr[(get_local_id(0) & 1)];
  lv_var_sum_ptr[0] = (lv_var_sum_ptr[0] + lv_sum_parts_ptr[((get_local_id(0) & 1) + 2)]);
  float4 v__2 = as_float4(READ_IMAGEF(B_ptr, image_sampler, ((int4)((get_local_id(0) >> 1), 0, 0, 0))));
  vstore4(v__2, 0, texel_ptr + 0);
  float4 v__3 = as_float4(READ_IMAGEF(C_ptr, image_sampler, ((int4)((get_local_id(0) >> 1), 0, 0, 0))));
  vstore4(v__3, 0, texel_ptr_1 + 0);
  for (int j = 0; j < 4; ++j) {
    texel_ptr[j] = ((((row_row_ptr[j] - (lv_sum_ptr[0] / 1.600000e+01f)) * (1.000000e+00f / sqrt(((lv_var_sum_ptr[0] / 1.600000e+01f) + 1.000000e-05f)))) * texel_ptr[j]) + texel_ptr_1[j]);
  }
  float4 v__4 = vload4(0, texel_ptr + 0);
  write_imagef(T_layer_norm_ptr, (int4)((((get_group_id(0) * 2) + (get_local_id(0) & 1)) % 11), (get_local_id(0) >> 1), (((get_group_id(0) * 2) + (get_local_id(0) & 1)) / 11), 0), as_float4(v__4));
  float4 v__5 = as_float4(READ_IMAGEF(B_ptr, image_sampler, ((int4)(((get_local_id(0) >> 1) + 2), 0, 0, 0))));
  vstore4(v__5, 0, texel_ptr + 0);
  float4 v__6 = as_float4(READ_IMAGEF(C_ptr, image_sampler, ((int4)(((get_local_id(0) >> 1) + 2), 0, 0, 0))));
  vstore4(v__6, 0, texel_ptr_1 + 0);
  for (int j_1 = 0; j_1 < 4; ++j_1) {
    texel_ptr[j_1] = ((((row_row_ptr[(j_1 + 4)] - (lv_sum_ptr[0] / 1.600000e+01f)) * (1.000000e+00f / sqrt(((lv_var_sum_ptr[0] / 1.600000e+01f) + 1.000000e-05f)))) * texel_ptr[j_1]) + texel_ptr_1[j_1]);
  }
  float4 v__7 = vload4(0, texel_ptr + 0);
  write_imagef(T_layer_norm_ptr, (int4)((((get_group_id(0) * 2) + (get_local_id(0) & 1)) % 11), ((get_local_id(0) >> 1) + 2), (((get_group_id(0) * 2) + (get_local_id(0) & 1)) / 11), 0), as_float4(v__7));
}
