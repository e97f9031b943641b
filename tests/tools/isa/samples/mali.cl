// Work group 64 1 1, grid 2 1 1
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
__kernel void __attribute__((reqd_work_group_size(64, 1, 1))) loop(__global float* x, __global half4* h, __read_only image2d_array_t t, __write_only image2d_array_t o) {
  __local float s[64];
  const sampler_t nearest = CLK_NORMALIZED_COORDS_FALSE | CLK_ADDRESS_CLAMP | CLK_FILTER_NEAREST;
  float4 a = 0; half4 b = 0;
  for (int i = 0; i < 50; ++i) {
    s[get_local_id(0)] = x[i * 64 + get_local_id(0)];
    barrier(CLK_LOCAL_MEM_FENCE);
    a += read_imagef(t, nearest, (int4)(i, get_local_id(0), get_group_id(0), 0)) * s[i];
    b += h[i] * h[i + 1];
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  a.x = native_exp2(a.x) + (float)b.x; a.y = sqrt(a.y); a.z = max(a.z, 0.5f);
  h[get_local_id(0)] = b;
  write_imagef(o, (int4)(get_global_id(0), 0, 0, 0), a);
}
