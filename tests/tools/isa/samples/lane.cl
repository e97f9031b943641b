// Work group 32 1 1, grid 1 1 1
__kernel void lane(__global const float4* x, __global float* y) {
  float4 v = x[get_local_id(0)] * 2.0f;
  y[get_local_id(0)] = ((float*)&v)[get_local_id(0) & 3];
}
