#![no_main]
pregrant_fuzz::fuzz!("gref_requests");
