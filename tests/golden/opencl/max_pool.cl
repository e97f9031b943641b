__kernel void max_pool(__read_only image2d_array_t lv_ptr, __write_only image2d_array_t pool_max_ptr) {
  const sampler_t image_sampler = CLK_NORMALIZED_COORDS_FALSE | CLK_ADDRESS_CLAMP | CLK_FILTER_NEAREST;
  float acc_ptr[4];
  float value_ptr[36];
  acc_ptr[0] = -INFINITY;
  ... 4 times in all, to
  acc_ptr[3] = -INFINITY;
  int cse_v1 = (get_local_id(0) % 35);
  int cse_v2 = (get_local_id(0) % 7);
  int cse_v3 = (get_local_id(0) / 35);
  int cse_v4 = ((get_local_id(0) % 7) * 2);
  int cse_v5 = ((get_local_id(0) % 35) / 7);
  int cse_v6 = (((get_local_id(0) % 7) * 2) - 1);
  int cse_v7 = (((get_local_id(0) % 35) / 7) * 2);
  int cse_v9 = ((((get_local_id(0) % 35) / 7) * 2) - 1);
  float4 condval;
  if (((bool)(7 <= (get_local_id(0) % 35))) && ((bool)(1 <= (get_local_id(0) % 7)))) {
    float4 v_ = as_float4(READ_IMAGEF(lv_ptr, image_sampler, ((int4)((((get_local_id(0) % 7) * 2) - 1), ((((get_local_id(0) % 35) / 7) * 2) - 1), (get_local_id(0) / 35), 0))));
    condval = v_;
  } else {
    condval = ((float4)(-INFINITY, -INFINITY, -INFINITY, -INFINITY));
  }
  vstore4(condval, 0, value_ptr + 0);
  acc_ptr[0] = max((float)acc_ptr[0], (float)value_ptr[0]);
  ... 4 times in all, to
  acc_ptr[3] = max((float)acc_ptr[3], (float)value_ptr[3]);
  float4 condval_1;
  if (1 <= (get_local_id(0) % 7)) {
    float4 v__1 = as_float4(READ_IMAGEF(lv_ptr, image_sampler, ((int4)((((get_local_id(0) % 7) * 2) - 1), (((get_local_id(0) % 35) / 7) * 2), (get_local_id(0) / 35), 0))));
    condval_1 = v__1;
  } else {
    condval_1 = ((float4)(-INFINITY, -INFINITY, -INFINITY, -INFINITY));
  }
  vstore4(condval_1, 0, value_ptr + 4);
  acc_ptr[0] = max((float)acc_ptr[0], (float)value_ptr[4]);
  ... 4 times in all, to
  acc_ptr[3] = max((float)acc_ptr[3], (float)value_ptr[7]);
  int cse_v10 = ((((get_local_id(0) % 35) / 7) * 2) + 1);
  float4 condval_2;
  if (((bool)((get_local_id(0) % 35) < 28)) && ((bool)(1 <= (get_local_id(0) % 7)))) {
    float4 v__2 = as_float4(READ_IMAGEF(lv_ptr, image_sampler, ((int4)((((get_local_id(0) % 7) * 2) - 1), ((((get_local_id(0) % 35) / 7) * 2) + 1), (get_local_id(0) / 35), 0))));
    condval_2 = v__2;
  } else {
    condval_2 = ((float4)(-INFINITY, -INFINITY, -INFINITY, -INFINITY));
  }
  vstore4(condval_2, 0, value_ptr + 8);
  acc_ptr[0] = max((float)acc_ptr[0], (float)value_ptr[8]);
  ... 4 times in all, to
  acc_ptr[3] = max((float)acc_ptr[3], (float)value_ptr[11]);
  float4 condval_3;
  if (7 <= (get_local_id(0) % 35)) {
    float4 v__3 = as_float4(READ_IMAGEF(lv_ptr, image_sampler, ((int4)(((get_local_id(0) % 7) * 2), ((((get_local_id(0) % 35) / 7) * 2) - 1), (get_local_id(0) / 35), 0))));
    condval_3 = v__3;
  } else {
    condval_3 = ((float4)(-INFINITY, -INFINITY, -INFINITY, -INFINITY));
  }
  vstore4(condval_3, 0, value_ptr + 12);
  acc_ptr[0] = max((float)acc_ptr[0], (float)value_ptr[12]);
  ... 4 times in all, to
  acc_ptr[3] = max((float)acc_ptr[3], (float)value_ptr[15]);
  float4 v__4 = as_float4(READ_IMAGEF(lv_ptr, image_sampler, ((int4)(((get_local_id(0) % 7) * 2), (((get_local_id(0) % 35) / 7) * 2), (get_local_id(0) / 35), 0))));
  vstore4(v__4, 0, value_ptr + 16);
  acc_ptr[0] = max((float)acc_ptr[0], (float)value_ptr[16]);
  ... 4 times in all, to
  acc_ptr[3] = max((float)acc_ptr[3], (float)value_ptr[19]);
  float4 condval_4;
  if ((get_local_id(0) % 35) < 28) {
    float4 v__5 = as_float4(READ_IMAGEF(lv_ptr, image_sampler, ((int4)(((get_local_id(0) % 7) * 2), ((((get_local_id(0) % 35) / 7) * 2) + 1), (get_local_id(0) / 35), 0))));
    condval_4 = v__5;
  } else {
    condval_4 = ((float4)(-INFINITY, -INFINITY, -INFINITY, -INFINITY));
  }
  vstore4(condval_4, 0, value_ptr + 20);
  acc_ptr[0] = max((float)acc_ptr[0], (float)value_ptr[20]);
  ... 4 times in all, to
  acc_ptr[3] = max((float)acc_ptr[3], (float)value_ptr[23]);
  int cse_v8 = (((get_local_id(0) % 7) * 2) + 1);
  float4 condval_5;
  if (((bool)(7 <= (get_local_id(0) % 35))) && ((bool)((get_local_id(0) % 7) < 6))) {
    float4 v__6 = as_float4(READ_IMAGEF(lv_ptr, image_sampler, ((int4)((((get_local_id(0) % 7) * 2) + 1), ((((get_local_id(0) % 35) / 7) * 2) - 1), (get_local_id(0) / 35), 0))));
    condval_5 = v__6;
  } else {
    condval_5 = ((float4)(-INFINITY, -INFINITY, -INFINITY, -INFINITY));
  }
  vstore4(condval_5, 0, value_ptr + 24);
  acc_ptr[0] = max((float)acc_ptr[0], (float)value_ptr[24]);
  ... 4 times in all, to
  acc_ptr[3] = max((float)acc_ptr[3], (float)value_ptr[27]);
  float4 condval_6;
  if ((get_local_id(0) % 7) < 6) {
    float4 v__7 = as_float4(READ_IMAGEF(lv_ptr, image_sampler, ((int4)((((get_local_id(0) % 7) * 2) + 1), (((get_local_id(0) % 35) / 7) * 2), (get_local_id(0) / 35), 0))));
    condval_6 = v__7;
  } else {
    condval_6 = ((float4)(-INFINITY, -INFINITY, -INFINITY, -INFINITY));
  }
  vstore4(condval_6, 0, value_ptr + 28);
  acc_ptr[0] = max((float)acc_ptr[0], (float)value_ptr[28]);
  ... 4 times in all, to
  acc_ptr[3] = max((float)acc_ptr[3], (float)value_ptr[31]);
  float4 condval_7;
  if (((bool)((get_local_id(0) % 35) < 28)) && ((bool)((get_local_id(0) % 7) < 6))) {
    float4 v__8 = as_float4(READ_IMAGEF(lv_ptr, image_sampler, ((int4)((((get_local_id(0) % 7) * 2) + 1), ((((get_local_id(0) % 35) / 7) * 2) + 1), (get_local_id(0) / 35), 0))));
    condval_7 = v__8;
  } else {
    condval_7 = ((float4)(-INFINITY, -INFINITY, -INFINITY, -INFINITY));
  }
  vstore4(condval_7, 0, value_ptr + 32);
  acc_ptr[0] = max((float)acc_ptr[0], (float)value_ptr[32]);
  ... 4 times in all, to
  acc_ptr[3] = max((float)acc_ptr[3], (float)value_ptr[35]);
  float4 v__9 = vload4(0, acc_ptr + 0);
  write_imagef(pool_max_ptr, (int4)((get_local_id(0) % 7), ((get_local_id(0) % 35) / 7), (get_local_id(0) / 35), 0), as_float4(v__9));
}
