#!/bin/sh
# Planted fault: a variable that may be empty, in front of a slash.
rm -rf "$1"/
cd $UNSET_HERE
