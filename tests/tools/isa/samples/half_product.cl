// Work group 64 1 1, grid 4 1 1
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
__kernel void half_product(__global const half* a, __global const half* b, __global float* c) {
  half4 sum = (half4)(0);
  for (int k = 0; k < 1000; ++k) {
    sum = (half4)(a[k]) * vload4(k * 64 + get_local_id(0), b) + sum;
  }
  vstore4(convert_float4(sum), get_global_id(0), c);
}
