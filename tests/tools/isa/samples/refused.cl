// Work group 32 1 1, grid 1 1 1
__kernel void refused(__global float* x) { x[0] = nonsense; }
