//! Taps of the kernel as ports: by themselves, and with a guest behind them.

mod announced;
mod owner;
mod tags_and_tunnels;
mod tap;
mod tap_guest;
