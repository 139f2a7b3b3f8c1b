"""Who is served first: the policies, and the service and predictions they rank by."""
