__kernel void conv2d_relu_in_buffers(__global float* restrict B_ptr, __global float* restrict compute_ptr, __global float* restrict x0_ptr) {
  float acc_ptr[1];
  float value_ptr[18];
  if (((get_group_id(0) * 16) + (get_local_id(0) >> 3)) < 117) {
    acc_ptr[0] = 0.000000e+00f;
    int cse_v1 = ((get_group_id(0) * 128) + get_local_id(0));
    for (int r0 = 0; r0 < 8; ++r0) {
      int cse_v2 = (((get_group_id(0) * 128) + get_local_id(0)) % 117);
      int cse_v3 = (((get_group_id(0) * 128) + get_local_id(0)) % 13);
      int cse_v4 = ((r0 * 117) + (((get_group_id(0) * 128) + get_local_id(0)) % 117));
      float condval;
      if (((bool)(13 <= (((get_group_id(0) * 128) + get_local_id(0)) % 117))) && ((bool)(1 <= (((get_group_id(0) * 128) + get_local_id(0)) % 13)))) {
        condval = x0_ptr[(((r0 * 117) + (((get_group_id(0) * 128) + get_local_id(0)) % 117)) - 14)];
      } else {
        condval = 0.000000e+00f;
      }
      value_ptr[0] = condval;
      int cse_v5 = (((((get_group_id(0) * 128) + get_local_id(0)) / 117) * 72) + (r0 * 9));
      value_ptr[1] = B_ptr[(((((get_group_id(0) * 128) + get_local_id(0)) / 117) * 72) + (r0 * 9))];
      acc_ptr[0] = (acc_ptr[0] + (value_ptr[0] * value_ptr[1]));
      float condval_1;
      if (13 <= (((get_group_id(0) * 128) + get_local_id(0)) % 117)) {
        condval_1 = x0_ptr[(((r0 * 117) + (((get_group_id(0) * 128) + get_local_id(0)) % 117)) - 13)];
      } else {
        condval_1 = 0.000000e+00f;
      }
      value_ptr[2] = condval_1;
      value_ptr[3] = B_ptr[((((((get_group_id(0) * 128) + get_local_id(0)) / 117) * 72) + (r0 * 9)) + 1)];
      acc_ptr[0] = (acc_ptr[0] + (value_ptr[2] * value_ptr[3]));
      float condval_2;
      if (((bool)(13 <= (((get_group_id(0) * 128) + get_local_id(0)) % 117))) && ((bool)((((get_group_id(0) * 128) + get_local_id(0)) % 13) < 12))) {
        condval_2 = x0_ptr[(((r0 * 117) + (((get_group_id(0) * 128) + get_local_id(0)) % 117)) - 12)];
      } else {
        condval_2 = 0.000000e+00f;
      }
      value_ptr[4] = condval_2;
      value_ptr[5] = B_ptr[((((((get_group_id(0) * 128) + get_local_id(0)) / 117) * 72) + (r0 * 9)) + 2)];
      acc_ptr[0] = (acc_ptr[0] + (value_ptr[4] * value_ptr[5]));
      float condval_3;
      if (1 <= (((get_group_id(0) * 128) + get_local_id(0)) % 13)) {
        condval_3 = x0_ptr[(((r0 * 117) + (((get_group_id(0) * 128) + get_local_id(0)) % 117)) - 1)];
      } else {
        condval_3 = 0.000000e+00f;
      }
      value_ptr[6] = condval_3;
      value_ptr[7] = B_ptr[((((((get_group_id(0) * 128) + get_local_id(0)) / 117) * 72) + (r0 * 9)) + 3)];
      acc_ptr[0] = (acc_ptr[0] + (value_ptr[6] * value_ptr[7]));
      value_ptr[8] = x0_ptr[((r0 * 117) + (((get_group_id(0) * 128) + get_local_id(0)) % 117))];
      value_ptr[9] = B_ptr[((((((get_group_id(0) * 128) + get_local_id(0)) / 117) * 72) + (r0 * 9)) + 4)];
      acc_ptr[0] = (acc_ptr[0] + (value_ptr[8] * value_ptr[9]));
      float condval_4;
      if ((((get_group_id(0) * 128) + get_local_id(0)) % 13) < 12) {
        condval_4 = x0_ptr[(((r0 * 117) + (((get_group_id(0) * 128) + get_local_id(0)) % 117)) + 1)];
      } else {
        condval_4 = 0.000000e+00f;
      }
      value_ptr[10] = condval_4;
      value_ptr[11] = B_ptr[((((((get_group_id(0) * 128) + get_local_id(0)) / 117) * 72) + (r0 * 9)) + 5)];
      acc_ptr[0] = (acc_ptr[0] + (value_ptr[10] * value_ptr[11]));
      float condval_5;
      if (((bool)((((get_group_id(0) * 128) + get_local_id(0)) % 117) < 104)) && ((bool)(1 <= (((get_group_id(0) * 128) + get_local_id(0)) % 13)))) {
        condval_5 = x0_ptr[(((r0 * 117) + (((get_group_id(0) * 128) + get_local_id(0)) % 117)) + 12)];
      } else {
        condval_5 = 0.000000e+00f;
      }
      value_ptr[12] = condval_5;
      value_ptr[13] = B_ptr[((((((get_group_id(0) * 128) + get_local_id(0)) / 117) * 72) + (r0 * 9)) + 6)];
      acc_ptr[0] = (acc_ptr[0] + (value_ptr[12] * value_ptr[13]));
      float condval_6;
      if ((((get_group_id(0) * 128) + get_local_id(0)) % 117) < 104) {
        condval_6 = x0_ptr[(((r0 * 117) + (((get_group_id(0) * 128) + get_local_id(0)) % 117)) + 13)];
      } else {
        condval_6 = 0.000000e+00f;
      }
      value_ptr[14] = condval_6;
      value_ptr[15] = B_ptr[((((((get_group_id(0) * 128) + get_local_id(0)) / 117) * 72) + (r0 * 9)) + 7)];
      acc_ptr[0] = (acc_ptr[0] + (value_ptr[14] * value_ptr[15]));
      float condval_7;
      if (((bool)((((get_group_id(0) * 128) + get_local_id(0)) % 117) < 104)) && ((bool)((((get_group_id(0) * 128) + get_local_id(0)) % 13) < 12))) {
        condval_7 = x0_ptr[(((r0 * 117) + (((get_group_id(0) * 128) + get_local_id(0)) % 117)) + 14)];
      } else {
        condval_7 = 0.000000e+00f;
      }
      value_ptr[16] = condval_7;
      value_ptr[17] = B_ptr[((((((get_group_id(0) * 128) + get_local_id(0)) / 117) * 72) + (r0 * 9)) + 8)];
      acc_ptr[0] = (acc_ptr[0] + (value_ptr[16] * value_ptr[17]));
    }
    compute_ptr[((get_group_id(0) * 128) + get_local_id(0))] = max((float)acc_ptr[0], (float)0.000000e+00f);
  }
}
