#![no_main]
pregrant_fuzz::fuzz!("xs_codec");
