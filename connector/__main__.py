"""``python -m connector`` is ``kubemq-amqp``."""

import sys

from connector.cli import main

if __name__ == "__main__":
    sys.exit(main())
