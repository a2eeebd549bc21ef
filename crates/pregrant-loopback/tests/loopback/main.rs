//! The software Xen itself: the platform's conformance and its threads, xenstored behind sockets,
//! and a front on it.

mod conformance;
#[path = "../../../pregrant/tests/skip/mod.rs"]
mod skip;
#[path = "../../../pregrant-xenstored/tests/store_model/mod.rs"]
mod store_model;
mod store_program;
mod threads;
mod xenstored;
mod xsa_frontend;
