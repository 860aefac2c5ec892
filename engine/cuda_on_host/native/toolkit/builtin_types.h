// Empty: cuda_on_host.h already declares the contents.
