"""The product's version; the package, the command line and the handshake take it from here."""

VERSION = "0.1.0"
