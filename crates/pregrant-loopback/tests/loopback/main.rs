//! The software Xen itself: the platform's conformance and its threads, and xenstored behind
//! sockets.

mod conformance;
#[path = "../../../pregrant/tests/skip/mod.rs"]
mod skip;
#[path = "../../../pregrant-xenstored/tests/store_model/mod.rs"]
mod store_model;
mod store_program;
mod threads;
mod xenstored;
