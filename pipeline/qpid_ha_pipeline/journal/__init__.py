"""Reading what brokers have written: from a store's files to Arrow batches, with as few Python objects as possible."""
