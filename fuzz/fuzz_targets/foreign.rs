#![no_main]
pregrant_fuzz::fuzz!("foreign");
