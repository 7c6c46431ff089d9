"""What tests share: processes, servers, stores, comparisons, and inputs in few words."""
