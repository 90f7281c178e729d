"""The face that Pacemaker sees: the resource agent API of the Open Cluster Framework, version 1.1."""
