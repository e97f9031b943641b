# SPDX-License-Identifier: Apache-2.0
"""A fake tracker of the devices in a file, ``[[key, host, port], ...]``, as a real one takes seconds to start."""

import json
import socketserver
import struct
import threading
from contextlib import contextmanager
from pathlib import Path

from smartmem_tvm.remote.wire import TRACKER_MAGIC, Code, receive_int, receive_text, send_text


@contextmanager
def tracker_of(servers: Path):
    """Start the tracker, and yield its address."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self):
            receive_int(self.request)
            self.request.sendall(struct.pack("<i", TRACKER_MAGIC))
            assert json.loads(receive_text(self.request)) == [Code.SUMMARY]
            found = json.loads(servers.read_text() or "[]")
            listed = [{"key": key, "addr": [host, port]} for key, host, port in found]
            send_text(self.request, json.dumps([Code.SUCCESS, {"server_info": listed, "queue_info": {}}]))

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
