"""What every coordinator has to keep, as tests that run against any installed one.

    pip install 'qpid-ha[conformance]'
    pytest --pyargs qpid_ha_broker.coordination.conformance --coordinator URL

The coordinator has to be one that nobody uses: a directory, or a namespace, of its own. docs/coordinators.md.
"""
