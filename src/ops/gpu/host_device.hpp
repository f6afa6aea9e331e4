#pragma once
// For arithmetic that host and device compile alike, so that one formula is written once.

#if defined(__CUDACC__) || defined(__HIPCC__)
#define PRIMUS_HOST_DEVICE __host__ __device__
#else
#define PRIMUS_HOST_DEVICE
#endif

/// Defined while code for the device is made.
#if defined(__CUDA_ARCH__) || defined(__HIP_DEVICE_COMPILE__)
#define PRIMUS_DEVICE_PASS
#endif
