// Empty: everything of it is known before a kernel's source.
