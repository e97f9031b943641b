__kernel void broadcast_multiply_in_buffers(__global float* restrict T_multiply_ptr, __global float* restrict lv_ptr, __global float* restrict lv1_ptr) {
  if (((get_group_id(0) * 8) + (get_local_id(0) >> 5)) < 11) {
    int cse_v1 = (get_local_id(0) & 15);
    int cse_v2 = ((get_group_id(0) * 16) + (get_local_id(0) >> 4));
    int cse_v3 = (((get_group_id(0) * 16) + (get_local_id(0) >> 4)) / 11);
    T_multiply_ptr[((get_group_id(0) * 256) + get_local_id(0))] = (lv_ptr[((((((get_group_id(0) * 16) + (get_local_id(0) >> 4)) / 11) * 176) + ((get_local_id(0) & 15) * 11)) + (((get_group_id(0) * 16) + (get_local_id(0) >> 4)) % 11))] * lv1_ptr[(((((get_group_id(0) * 16) + (get_local_id(0) >> 4)) / 11) * 16) + (get_local_id(0) & 15))]);
  }
}
