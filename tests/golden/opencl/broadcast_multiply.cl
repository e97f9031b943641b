__kernel void broadcast_multiply(__write_only image2d_array_t T_multiply_ptr, __read_only image2d_array_t lv_ptr, __read_only image2d_array_t lv1_ptr) {
  const sampler_t image_sampler = CLK_NORMALIZED_COORDS_FALSE | CLK_ADDRESS_CLAMP | CLK_FILTER_NEAREST;
  float texel_ptr[4];
  if (get_local_id(0) < 88) {
    int cse_v1 = (get_local_id(0) / 44);
    int cse_v3 = ((get_local_id(0) % 44) / 11);
    float4 v_ = as_float4(READ_IMAGEF(lv1_ptr, image_sampler, ((int4)(0, ((get_local_id(0) % 44) / 11), (get_local_id(0) / 44), 0))));
    vstore4(v_, 0, texel_ptr + 0);
    int cse_v2 = (get_local_id(0) % 11);
    for (int j = 0; j < 4; ++j) {
      float4 v__1 = as_float4(READ_IMAGEF(lv_ptr, image_sampler, ((int4)(((((get_local_id(0) % 44) / 11) * 4) + j), ((get_local_id(0) % 11) >> 2), (get_local_id(0) / 44), 0))));
      float4 texel = v__1;
      int lane = ((get_local_id(0) % 11) & 3);
      texel_ptr[j] = (select(select((texel).s2, (texel).s3, (convert_int((lane == 3)))), select((texel).s0, (texel).s1, (convert_int((lane == 1)))), (convert_int((lane < 2)))) * texel_ptr[j]);
    }
    float4 v__2 = vload4(0, texel_ptr + 0);
    write_imagef(T_multiply_ptr, (int4)((get_local_id(0) % 11), ((get_local_id(0) % 44) / 11), (get_local_id(0) / 44), 0), as_float4(v__2));
  }
}
