#![no_main]
pregrant_fuzz::fuzz!("back_rx");
