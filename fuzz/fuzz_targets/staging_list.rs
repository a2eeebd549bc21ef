#![no_main]
pregrant_fuzz::fuzz!("staging_list");
