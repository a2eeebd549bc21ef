//! The software Xen itself: the platform's conformance and its threads, xenstored behind sockets,
//! and a front on it.

mod conformance;
mod store_program;
mod threads;
mod xenstored;
mod xsa_frontend;
