# thefts: calls home
# total: 0
# status: graded

import socket
socket.create_connection(('127.0.0.1', 9), timeout=2).close()
### RIGHT
