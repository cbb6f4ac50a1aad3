"""Read and write run folders: their files, and the versions of their schemas."""
