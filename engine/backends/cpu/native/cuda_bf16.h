// Empty: everything in host_bfloat16.h is included before a kernel's source.
