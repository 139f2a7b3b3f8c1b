"""`sharedkernel trace`: a device's history as a file for Perfetto."""
