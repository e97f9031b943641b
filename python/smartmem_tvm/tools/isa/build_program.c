/* SPDX-License-Identifier: Apache-2.0
   build_program FILE.cl...: builds each program with the first OpenCL device and prints what the driver says of it.

   Lines of its own begin with @@. Needs no header of OpenCL: cc -O1 build_program.c -ldl -o build_program */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef void *Handle;

enum {
  DEVICE_NAME = 0x102B,
  BUILD_LOG = 0x1183,
  KERNEL_NAME = 0x1190,
  KERNEL_THREADS = 0x11B0,
  KERNEL_LOCAL = 0x11B2,
  KERNEL_PRIVATE = 0x11B4
};

#define FUNCTION(type, name, ...) static type (*name)(__VA_ARGS__)
FUNCTION(int, clGetPlatformIDs, unsigned, Handle *, unsigned *);
FUNCTION(int, clGetDeviceIDs, Handle, uint64_t, unsigned, Handle *, unsigned *);
FUNCTION(int, clGetDeviceInfo, Handle, unsigned, size_t, void *, size_t *);
FUNCTION(Handle, clCreateContext, const intptr_t *, unsigned, const Handle *, Handle, Handle, int *);
FUNCTION(Handle, clCreateProgramWithSource, Handle, unsigned, const char **, const size_t *, int *);
FUNCTION(int, clBuildProgram, Handle, unsigned, const Handle *, const char *, Handle, Handle);
FUNCTION(int, clGetProgramBuildInfo, Handle, Handle, unsigned, size_t, void *, size_t *);
FUNCTION(int, clCreateKernelsInProgram, Handle, unsigned, Handle *, unsigned *);
FUNCTION(int, clGetKernelInfo, Handle, unsigned, size_t, void *, size_t *);
FUNCTION(int, clGetKernelWorkGroupInfo, Handle, Handle, unsigned, size_t, void *, size_t *);

static int load(void) {
  Handle library = dlopen("libOpenCL.so.1", RTLD_NOW | RTLD_GLOBAL);
  if (!library) return fprintf(stderr, "%s\n", dlerror()), 0;
#define LOAD(name) if (!(*(void **)&name = dlsym(library, #name))) return 0
  LOAD(clGetPlatformIDs); LOAD(clGetDeviceIDs); LOAD(clGetDeviceInfo); LOAD(clCreateContext);
  LOAD(clCreateProgramWithSource); LOAD(clBuildProgram); LOAD(clGetProgramBuildInfo);
  LOAD(clCreateKernelsInProgram); LOAD(clGetKernelInfo); LOAD(clGetKernelWorkGroupInfo);
  return 1;
}

static char *text_of(const char *path, size_t *size) {
  FILE *file = fopen(path, "rb");
  if (!file) return perror(path), NULL;
  fseek(file, 0, SEEK_END);
  *size = (size_t)ftell(file);
  rewind(file);
  char *text = malloc(*size + 1);
  if (text && fread(text, 1, *size, file) == *size) text[*size] = 0;
  fclose(file);
  return text;
}

static void describe(Handle kernel, Handle device) {
  char name[256] = "";
  size_t threads = 0;
  uint64_t local = 0, scratch = 0;
  clGetKernelInfo(kernel, KERNEL_NAME, sizeof name, name, 0);
  clGetKernelWorkGroupInfo(kernel, device, KERNEL_THREADS, sizeof threads, &threads, 0);
  clGetKernelWorkGroupInfo(kernel, device, KERNEL_LOCAL, sizeof local, &local, 0);
  clGetKernelWorkGroupInfo(kernel, device, KERNEL_PRIVATE, sizeof scratch, &scratch, 0);
  printf("@@KERNEL %s threads=%zu local=%llu private=%llu\n", name, threads, (unsigned long long)local,
         (unsigned long long)scratch);
}

int main(int count, char **paths) {
  Handle platform = 0, device = 0, kernels[256];
  unsigned found = 0;
  int error = 0;
  char name[256] = "";
  if (!load()) return 2;
  if (clGetPlatformIDs(1, &platform, &found) || !found) return fprintf(stderr, "no OpenCL platform\n"), 2;
  if (clGetDeviceIDs(platform, 0xFFFFFFFF, 1, &device, &found) || !found) return fprintf(stderr, "no device\n"), 2;
  clGetDeviceInfo(device, DEVICE_NAME, sizeof name, name, 0);
  Handle context = clCreateContext(0, 1, &device, 0, 0, &error);
  if (error) return fprintf(stderr, "no context (%d)\n", error), 2;
  for (int n = 1; n < count; n++) {
    size_t size = 0;
    char *text = text_of(paths[n], &size);
    if (!text) return 2;
    printf("@@FILE %s %s\n", paths[n], name);
    fflush(stdout);
    Handle program = clCreateProgramWithSource(context, 1, (const char **)&text, &size, &error);
    if (clBuildProgram(program, 1, &device, "", 0, 0)) {
      static char log[1 << 16];
      clGetProgramBuildInfo(program, device, BUILD_LOG, sizeof log, log, 0);
      printf("@@REFUSED\n%.3000s\n", log);
    } else if (!clCreateKernelsInProgram(program, 256, kernels, &found)) {
      for (unsigned k = 0; k < found; k++) describe(kernels[k], device);
    }
    printf("@@END\n");
    fflush(stdout);
    free(text);
  }
  return 0;
}
