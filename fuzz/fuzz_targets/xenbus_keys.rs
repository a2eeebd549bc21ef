#![no_main]
pregrant_fuzz::fuzz!("xenbus_keys");
