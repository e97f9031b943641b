__kernel void layer_norm_in_buffers(__global float* restrict B_ptr, __global float* restrict C_ptr, __global float* restrict T_layer_norm_ptr, __global float* restrict lv_ptr) {
  float4 row_row_ptr[1];
  float lv_sum_own_ptr[4];
  __local float lv_sum_parts_ptr[4] __attribute__((aligned(16)));
  float lv_sum_some_ptr[4];
  float lv_sum_ptr[1];
  float lv_var_sum_own_ptr[4];
  float lv_var_sum_some_ptr[4];
  float lv_var_sum_ptr[1];
  int cse_v1 = (get_local_id(0) * 4);
  int cse_v2 = ((get_group_id(0) * 16) + (get_local_id(0) * 4));
  row_row_ptr[0] = (*((const __global float4*)(lv_ptr + ((get_group_id(0) * 16) + (get_local_id(0) * 4)))));
  vstore4(((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)), 0, lv_sum_own_ptr + 0);
  vstore4((vload4(0, lv_sum_own_ptr + 0) + row_row_ptr[0]), 0, lv_sum_own_ptr + 0);
  lv_sum_own_ptr[0] = (((lv_sum_own_ptr[0] + lv_sum_own_ptr[1]) + lv_sum_own_ptr[2]) + lv_sum_own_ptr[3]);
  lv_sum_parts_ptr[get_local_id(0)] = lv_sum_own_ptr[0];
  barrier(CLK_LOCAL_MEM_FENCE);
  vstore4((*((const __local float4*)(lv_sum_parts_ptr + 0))), 0, lv_sum_some_ptr + 0);
  lv_sum_ptr[0] = (((lv_sum_some_ptr[0] + lv_sum_some_ptr[1]) + lv_sum_some_ptr[2]) + lv_sum_some_ptr[3]);
  vstore4(((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)), 0, lv_var_sum_own_ptr + 0);
  vstore4((vload4(0, lv_var_sum_own_ptr + 0) + ((row_row_ptr[0] - ((float4)((lv_sum_ptr[0] / 1.600000e+01f), (lv_sum_ptr[0] / 1.600000e+01f), (lv_sum_ptr[0] / 1.600000e+01f), (lv_sum_ptr[0] / 1.600000e+01f)))) * (row_row_ptr[0] - ((float4)((lv_sum_ptr[0] / 1.600000e+01f), (lv_sum_ptr[0] / 1.600000e+01f), (lv_sum_ptr[0] / 1.600000e+01f), (lv_sum_ptr[0] / 1.600000e+01f)))))), 0, lv_var_sum_own_ptr + 0);
  lv_var_sum_own_ptr[0] = (((lv_var_sum_own_ptr[0] + lv_var_sum_own_ptr[1]) + lv_var_sum_own_ptr[2]) + lv_var_sum_own_ptr[3]);
  barrier(CLK_LOCAL_MEM_FENCE);
  lv_sum_parts_ptr[get_local_id(0)] = lv_var_sum_own_ptr[0];
  barrier(CLK_LOCAL_MEM_FENCE);
  vstore4((*((const __local float4*)(lv_sum_parts_ptr + 0))), 0, lv_var_sum_some_ptr + 0);
  lv_var_sum_ptr[0] = (((lv_var_sum_some_ptr[0] + lv_var_sum_some_ptr[1]) + lv_var_sum_some_ptr[2]) + lv_var_sum_some_ptr[3]);
  *((__global float4*)(T_layer_norm_ptr + ((get_group_id(0) * 16) + (get_local_id(0) * 4)))) = ((((row_row_ptr[0] - ((float4)((lv_sum_ptr[0] / 1.600000e+01f), (lv_sum_ptr[0] / 1.600000e+01f), (lv_sum_ptr[0] / 1.600000e+01f), (lv_sum_ptr[0] / 1.600000e+01f)))) * ((float4)((1.000000e+00f / sqrt(((lv_var_sum_ptr[0] / 1.600000e+01f) + 1.000000e-05f))), (1.000000e+00f / sqrt(((lv_var_sum_ptr[0] / 1.600000e+01f) + 1.000000e-05f))), (1.000000e+00f / sqrt(((lv_var_sum_ptr[0] / 1.600000e+01f) + 1.000000e-05f))), (1.000000e+00f / sqrt(((lv_var_sum_ptr[0] / 1.600000e+01f) + 1.000000e-05f)))))) * (*((const __global float4*)(B_ptr + (get_local_id(0) * 4))))) + (*((const __global float4*)(C_ptr + (get_local_id(0) * 4)))));
}
