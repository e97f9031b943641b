// Work group 128 1 1, grid 2 3 1
__kernel void other(__global float* x);
__kernel void nested(__global const float* x, __global float* y) {
  __local float held[2048];
  float sum = 0.0f;
  for (int block = 0; block < 200; ++block) {
    barrier(CLK_LOCAL_MEM_FENCE);
    held[get_local_id(0)] = x[block * 128 + get_local_id(0)];
    held[get_local_id(0) + 1024] = x[block * 256 + get_local_id(0)];
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int k = 0; k < 480; k += 4) {
      sum = held[k] * held[(k + get_local_id(0)) & 2047] + sum;
    }
  }
  y[get_global_id(1) * 256 + get_global_id(0)] = native_exp2(sum);
}
