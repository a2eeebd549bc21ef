#![no_main]
pregrant_fuzz::fuzz!("blk_back");
