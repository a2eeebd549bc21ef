//! Taps of the kernel as ports: by themselves, and with a guest behind them.

mod announced;
#[path = "../netns/mod.rs"]
mod netns;
mod owner;
#[path = "../../../pregrant/tests/rig/mod.rs"]
mod rig;
#[path = "../../../pregrant/tests/skip/mod.rs"]
mod skip;
mod tags_and_tunnels;
mod tap;
mod tap_guest;
