"""The equations by themselves, each under the name and signature of its reference. A step does not need them."""
