// Empty: everything in cuda_on_host.h is included before a kernel's source.
