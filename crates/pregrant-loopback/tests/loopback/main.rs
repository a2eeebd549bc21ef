//! The software Xen itself: the platform's conformance and its threads, and xenstored behind
//! sockets.

mod conformance;
mod store_program;
mod threads;
mod xenstored;
