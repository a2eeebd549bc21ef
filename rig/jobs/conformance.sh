# The platform's conformance suite, in this guest.
conformance
