// The demo's guests are built on these two.
#[allow(dead_code)]
mod guest_stack;
#[allow(dead_code)]
mod transfer;

fn main() {}
