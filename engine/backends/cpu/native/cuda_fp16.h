// Empty: everything in host_half.h is included before a kernel's source.
